"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { meta, headline, problems, moves, spend, verdicts, costs } = data;
  const $ = (id) => document.getElementById(id);
  const { h, s, times, interval, plain, latency, duration, count, chart, text, line, niceSteps, logSteps, timeSteps, stateColumn, drawHeads, byColumn } = Charts;

  // --- moments and commits ---

  const moment = (hours) =>
    meta.begin ? new Date(Date.parse(meta.begin) + hours * 36e5).toISOString().slice(0, 16).replace("T", " ") + " UTC" : "";
  const commitLink = (commit) => (meta.commit_url && commit ? meta.commit_url.replace("{}", commit) : "#commit=" + (commit || ""));

  function drawSpeedups() {
    const rows = problems.filter((one) => one.state === "confirmed").sort((a, b) => b.speedup - a.speedup);
    if (!rows.length) return empty("speedups", "No speed-up is confirmed yet.");
    chart($("speedups"), 250, "Confirmed speed-ups, the highest first", (svg, width, height) => {
      const left = 40, right = width - 8, top = 10, bottom = height - 24;
      const high = Math.max(2, ...rows.map((one) => one.high || one.speedup)) * 1.05;
      const y = (value) => bottom - (Math.log(value) / Math.log(high)) * (bottom - top);
      for (const value of logSteps(1, high)) {
        svg.append(line(left, y(value), right, y(value), value === 1 ? "axis" : "grid"));
        svg.append(text(left - 6, y(value) + 4, value + "×", { "text-anchor": "end" }));
      }
      const total = problems.length, step = (right - left) / total;
      rows.forEach((one, number) => {
        const x = left + number * step, wide = Math.max(Math.min(step - (step > 3 ? 1 : 0), 48), 0.7);
        const bar = s("rect", { x, y: y(one.speedup), width: wide, height: Math.max(bottom - y(one.speedup), 0.5), class: "bar" });
        bar.append(s("title", {}, `${one.key}: ${times(one.speedup, 3)} (95 % ${plain(one.low, 3)} to ${plain(one.high, 3)})`));
        svg.append(bar);
        if (step > 5) svg.append(s("line", { x1: x + wide / 2, x2: x + wide / 2, y1: y(one.low), y2: y(one.high), stroke: "currentColor" }));
      });
      svg.append(text(left, bottom + 18, `1`, {}));
      svg.append(text(right, bottom + 18, count(total, "problem"), { "text-anchor": "end" }));
    });
    const others = problems.length - rows.length;
    note("speedups", "Logarithmic scale." + (others ? ` ${count(others, "problem")} without a confirmed speed-up ${others === 1 ? "has" : "have"} no bar.` : ""));
  }

  function drawScores() {
    const rows = problems.filter((one) => one.state === "confirmed" && one.score !== null);
    if (!rows.length) return empty("scores", "No confirmed champion has a score yet.");
    const bins = Array.from({ length: 20 }, () => 0);
    for (const one of rows) bins[Math.min(19, Math.max(0, Math.floor(one.score * 20)))] += 1;
    chart($("scores"), 250, "Histogram of SOL scores of the confirmed champions", (svg, width, height) => {
      const left = 40, right = width - 8, top = 10, bottom = height - 24;
      const most = Math.max(...bins), y = (value) => bottom - (value / most) * (bottom - top) * 0.95;
      for (const value of niceSteps(0, most, 4).filter(Number.isInteger)) {
        svg.append(line(left, y(value), right, y(value), value ? "grid" : "axis"));
        svg.append(text(left - 6, y(value) + 4, String(value), { "text-anchor": "end" }));
      }
      const step = (right - left) / 20;
      bins.forEach((number, at) => {
        const bar = s("rect", { x: left + at * step + 1, y: y(number), width: step - 2, height: bottom - y(number), class: "bar" });
        bar.append(s("title", {}, `${count(number, "problem")} with a score of ${(at / 20).toFixed(2)} to ${((at + 1) / 20).toFixed(2)}`));
        svg.append(bar);
      });
      for (const value of [0, 0.25, 0.5, 0.75, 1])
        svg.append(text(left + value * (right - left), bottom + 17, value.toFixed(2), { "text-anchor": value === 1 ? "end" : "middle" }));
      svg.append(line(left + (right - left) / 2, top, left + (right - left) / 2, bottom, "ref"));
    });
    const others = problems.length - rows.length;
    note("scores", "Problems by the score of their confirmed champion. Dashed: the baseline." + (others ? ` ${count(others, "problem")} without one ${others === 1 ? "is" : "are"} left out.` : ""));
  }

  function note(id, words) {
    $(id).after(h("figcaption", { class: "fine" }, words));
  }
  function empty(id, words) {
    Charts.empty($(id), words);
  }

  // --- one problem ---

  function follow(event) {
    const target = event.currentTarget, commit = target.getAttribute("data-commit");
    if (meta.commit_url) return;
    event.preventDefault();
    const said = $("shown-commit");
    if (said) said.replaceChildren("On no web host. In the workspace: ", h("code", {}, `git show ${commit}`));
  }

  function mark(one) {
    return one.speedup && one.weaknesses.length ? data.weakened.symbol : "";
  }

  function facts(one) {
    const pairs = [
      ["Speed-up", one.speedup ? `${times(one.speedup, 3)}${mark(one)} (95 % ${plain(one.low, 3)} to ${plain(one.high, 3)})${one.state === "outdated" ? `, by judge protocol ${one.judge_protocol}: history, which does not count` : ""}` : "–"],
      ["Latency now", latency(one.latency_us)], ["Fastest baseline", latency(one.baseline_us)], ["Bound (SOL)", latency(one.bound_us)],
      ["SOL score", plain(one.score)], ["Trust", one.trust || "–"],
      ["Over agent-written PyTorch", times(one.against.baseline, 3)], ["Over eager PyTorch", times(one.against.eager, 3)],
      ["Evaluations", `${one.evaluations} by ${count(one.workers, "worker")}, ${count(one.duplicates, "duplicate")}, ${one.near_duplicates} nearly identical`],
      ["Since the last gain", count(one.since_gain, "evaluation")], ["Device time", duration(one.cost_s / 3600)],
      ["Verdicts", Object.entries(one.verdicts).sort((a, b) => b[1] - a[1]).map(([name, number]) => `${number} ${name}`).join(", ") || "–"],
      ...one.weaknesses.map((sentence) => [`${data.weakened.symbol} Weakened`, sentence]),
    ];
    return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", { class: /^Verdicts|Weakened$/.test(name) ? "wide" : null }, [h("dt", {}, name), h("dd", {}, value)])));
  }

  function stepDetails(step, before) {
    const confirmed = step.confirmation ? `, confirmed ${interval(step.confirmation)}` : ", not confirmed";
    const body = [h("p", { class: "sub" }, [
      `${latency(step.latency_us)} against ${latency(step.baseline_us)} of the baseline in the same race, at ${moment(step.at)}`,
      step.subject ? `: ${step.subject} ` : " ",
      step.commit ? h("a", { href: commitLink(step.commit), "data-commit": step.commit, class: "mono", onclick: follow }, step.commit.slice(0, 10)) : null,
    ])];
    if (step.workloads) body.push(workloadTable(step.workloads));
    if (step.diff) {
      const against = before ? `seq ${before.seq}` : "the solution that the work began with";
      const lines = step.diff.split("\n").map((words) => h("span", { class: /^[+]/.test(words) ? "more" : /^-/.test(words) ? "less" : /^@@|^diff/.test(words) ? "mark" : null }, words + "\n"));
      body.push(h("p", { class: "sub" }, `Difference from ${against}` + (step.more_lines ? `; ${count(step.more_lines, "more line")}: ${step.compared || "see its commit"}` : "")));
      body.push(h("pre", { class: "diff", tabindex: "0" }, lines));
    } else body.push(h("p", { class: "sub" }, step.compared ? ["The difference: ", h("code", {}, step.compared)] : "The difference is left out here; the commit has it."));
    return h("details", { class: "step", open: step.champion }, [h("summary", {}, [h("b", {}, interval(step)), ` by ${step.worker || "?"}, seq ${step.seq}${confirmed}${step.champion ? "; the champion" : step.gain ? "" : "; a champion then"}`]), ...body]);
  }

  function workloadTable(rows) {
    const heads = ["Workload", "Latency", "Baseline", "Speed-up", "95 %"];
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Workloads of this step" }, h("table", {}, [
      h("thead", {}, h("tr", {}, heads.map((name, number) => h("th", { scope: "col", class: "plain" + (number ? "" : " text") }, name)))),
      h("tbody", {}, rows.map(([uuid, us, baseline, speedup, low, high]) => h("tr", {}, [h("td", { class: "text mono" }, uuid), ...[latency(us), latency(baseline), times(speedup, 3), low ? `${plain(low, 3)} – ${plain(high, 3)}` : "–"].map((words) => h("td", {}, words))]))),
    ]));
  }

  function open(one, remember = true) {
    const box = h("div");
    const steps = [...one.steps].reverse();
    $("detail-body").replaceChildren(
      h("header", {}, [h("h2", { id: "detail-title" }, one.key), h("button", { type: "button", onclick: () => $("detail").close(), "aria-label": "Close" }, "Close")]),
      facts(one), box,
      h("p", { class: "sub", id: "shown-commit", role: "status" }, steps.length ? "Each ring is a gain or a champion with its 95 % interval, filled where a second measurement confirmed it; it leads to its commit. Grey: every evaluation that passed." : ""),
      steps.length ? h("h3", {}, "Gains and champions, the newest first") : "",
      ...steps.map((step, number) => stepDetails(step, steps[number + 1])),
    );
    if (!$("detail").open) $("detail").showModal();
    Charts.trajectory(box, one, moment, (step) => ({ href: commitLink(step.commit), onclick: follow }));
    if (remember) history.replaceState(null, "", "#p=" + encodeURIComponent(one.key));
  }
  $("detail").addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  $("detail").addEventListener("click", (event) => { if (event.target === $("detail")) $("detail").close(); });

  // --- the table ---

  const most = Math.max(1.0001, ...problems.map((one) => (one.state === "confirmed" ? one.speedup : 1)));
  const columns = [
    ["Problem", (one) => one.key, (one) => h("button", { type: "button", class: "open", onclick: () => open(one) }, one.key), true],
    stateColumn,
    ["Speed-up", (one) => (one.state === "outdated" ? null : one.speedup), (one) => h("span", {}, [times(one.speedup, 3), mark(one) ? h("abbr", { class: "flag", title: one.weaknesses.join("; ") }, mark(one)) : null, h("span", { class: "bar-cell", "aria-hidden": "true" }, h("i", { style: `width:${one.speedup > 1 && one.state !== "outdated" ? (100 * Math.log(one.speedup)) / Math.log(most) : 0}%` }))])],
    ["95 %", (one) => one.low, (one) => (one.low ? `${plain(one.low, 3)} – ${plain(one.high, 3)}` : "–")],
    ["Score", (one) => one.score, (one) => plain(one.score)],
    ["Baseline", (one) => one.baseline_us, (one) => latency(one.baseline_us)],
    ["Latency", (one) => one.latency_us, (one) => latency(one.latency_us)],
    ["Bound", (one) => one.bound_us, (one) => latency(one.bound_us)],
    ["Evaluations", (one) => one.evaluations, (one) => one.evaluations.toLocaleString("en")],
    ["Since gain", (one) => one.since_gain, (one) => one.since_gain.toLocaleString("en")],
    ["Device time", (one) => one.cost_s, (one) => duration(one.cost_s / 3600)],
    ["Commit", (one) => one.commit || "", (one) => (one.commit ? h("a", { href: commitLink(one.commit), class: "mono", "data-commit": one.commit, onclick: (event) => { if (!meta.commit_url) { event.preventDefault(); open(one); follow({ currentTarget: event.target, preventDefault() {} }); } } }, one.commit.slice(0, 8)) : "–"), true],
  ];
  const sorting = { column: 2, down: true };

  function table() {
    const wanted = $("find").value.trim().toLowerCase(), suite = $("suite").value, state = $("state").value;
    const rows = problems.filter((one) => (!suite || one.suite === suite) && (!state || one.state === state)
      && (!wanted || [one.key, one.worker, one.commit].some((word) => (word || "").toLowerCase().includes(wanted))));
    rows.sort(byColumn(columns[sorting.column], sorting.down));
    $("problems").tBodies[0].replaceChildren(...rows.map((one) => h("tr", { "data-problem": one.key },
      columns.map(([, , cell, words]) => h("td", { class: words ? "text" : null }, cell(one))))));
    $("count").textContent = rows.length === problems.length ? count(rows.length, "problem") : `${rows.length} of ${count(problems.length, "problem")}`;
  }

  // --- moves, spend, verdicts, duplicates ---

  function hue(name) {
    let sum = 7;
    for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 360;
    return `hsl(${sum} 30% 58%)`;
  }
  function drawMoves() {
    if (!moves.length) return empty("moves", "The planner has recorded no move of this run.");
    const workers = [...new Set(moves.map((move) => move[1]))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    $("moves-sub").textContent = `${count(moves.length, "move")} of ${count(workers.length, "worker")}; a colour is a problem, a click opens it`;
    const tall = Math.min(26, Math.max(12, 420 / workers.length));
    chart($("moves"), workers.length * tall + 46, "Which worker was on which problem when", (svg, width, height) => {
      const left = 52, right = width - 6, bottom = height - 38, hours = Math.max(meta.hours, 1e-3);
      const x = (at) => left + (Math.max(0, Math.min(at, hours)) / hours) * (right - left);
      workers.forEach((worker, row) => {
        const top = 4 + row * tall, mine = moves.filter((move) => move[1] === worker);
        svg.append(text(left - 8, top + tall / 2 + 3, worker, { "text-anchor": "end" }));
        mine.forEach(([at, , problem, why], number) => {
          const end = number + 1 < mine.length ? mine[number + 1][0] : hours;
          const bar = s("rect", { x: x(at), y: top, width: Math.max(x(end) - x(at) - 0.5, 0.8), height: tall - 3, rx: 1.5, fill: hue(problem), style: "cursor:pointer" });
          bar.append(s("title", {}, `${worker} on ${problem}, ${moment(at)} for ${duration(end - at)}${why ? ": " + why : ""}`));
          bar.addEventListener("click", () => { const one = problems.find((each) => each.key === problem); if (one) open(one); });
          svg.append(bar);
        });
      });
      svg.append(line(left, bottom, right, bottom, "axis"));
      timeSteps(svg, x, right, bottom, hours, width);
    });
    const list = [...moves].reverse().slice(0, 500);
    $("moves-list").replaceChildren(
      h("thead", {}, h("tr", {}, ["When", "Worker", "Problem", "Why"].map((name) => h("th", { scope: "col", class: "text", style: "padding:.5rem .75rem" }, name)))),
      h("tbody", {}, list.map(([at, worker, problem, why]) => h("tr", {}, [h("td", { class: "text" }, moment(at)), h("td", { class: "text" }, worker), h("td", { class: "text" }, problem), h("td", { class: "text reason" }, why)]))));
  }

  function curve(box, column, label, unit, scale, color) {
    chart(box, 130, label, (svg, width, height) => {
      const left = 52, right = width - 8, top = 18, bottom = height - 38, hours = Math.max(meta.hours, 1e-3);
      const high = (Math.max(...spend.map((point) => point[column] * scale)) || 1) * 1.08;
      // A session may end before the first entry or after the last one.
      const x = (at) => left + (Math.max(0, Math.min(at, hours)) / hours) * (right - left), y = (value) => bottom - (value / high) * (bottom - top);
      for (const value of niceSteps(0, high, 3)) {
        svg.append(line(left, y(value), right, y(value), value ? "grid" : "axis"));
        svg.append(text(left - 6, y(value) + 4, value.toLocaleString("en", { maximumSignificantDigits: 3 }), { "text-anchor": "end" }));
      }
      svg.append(s("path", { d: "M" + spend.map((point) => `${x(point[0])},${y(point[column] * scale)}`).join("L") + `H${right}`, class: "line", style: `stroke:var(${color})` }));
      svg.append(text(left, 9, unit, {}));
      timeSteps(svg, x, right, bottom, hours, width);
    });
  }
  function drawSpend() {
    if (!spend.length) return empty("spend", "Nothing has been judged yet.");
    const device = h("div"), usd = h("div"), most = Math.max(...spend.map((point) => point[1]));
    $("spend").replaceChildren(device, usd);
    const [unit, scale] = most >= 1 ? ["hours", 1] : most >= 1 / 60 ? ["minutes", 60] : ["seconds", 3600];
    curve(device, 1, "Device time spent by then", `device ${unit}`, scale, "--accent");
    if (headline.usd === null) usd.append(h("p", { class: "sub" }, "No agent of this run has an account: it used no model."));
    else curve(usd, 2, "Dollars spent by then", "US dollars", 1, "--bound");
  }

  const COLORS = { PASSED: "var(--accent)", SUSPECT: "var(--warn)", REWARD_HACK: "var(--bad)" };
  const REST = ["#8a8f98", "#b3a38a", "#6f86a6", "#a58aa8", "#7f9a86", "#b98f7e", "#9aa2b1"];
  function drawVerdicts() {
    const names = Object.keys(verdicts.totals);
    const total = Object.values(verdicts.totals).reduce((sum, number) => sum + number, 0);
    if (!total) return empty("verdicts", "Nothing has been judged yet.");
    let next = 0;
    const color = Object.fromEntries(names.map((name) => [name, COLORS[name] || REST[next++ % REST.length]]));
    $("verdicts-sub").textContent = `${count(total, "evaluation")}; a bar is ${duration(verdicts.bucket_hours)}`;
    chart($("verdicts"), 215, "Verdicts over time", (svg, width, height) => {
      const left = 40, right = width - 8, top = 8, bottom = height - 38;
      const sums = verdicts.buckets.map((bucket) => Object.values(bucket).reduce((sum, number) => sum + number, 0));
      const high = Math.max(...sums), y = (value) => bottom - (value / high) * (bottom - top), step = (right - left) / sums.length;
      for (const value of niceSteps(0, high, 4).filter(Number.isInteger)) {
        svg.append(line(left, y(value), right, y(value), value ? "grid" : "axis"));
        svg.append(text(left - 6, y(value) + 4, String(value), { "text-anchor": "end" }));
      }
      verdicts.buckets.forEach((bucket, at) => {
        let base = 0;
        for (const name of names) {
          if (!bucket[name]) continue;
          const bar = s("rect", { x: left + at * step + 0.5, width: Math.max(step - 1, 0.8), y: y(base + bucket[name]), height: y(base) - y(base + bucket[name]), style: `fill:${color[name]}` });
          bar.append(s("title", {}, `${bucket[name]} ${name}, from ${moment(at * verdicts.bucket_hours)}`));
          svg.append(bar);
          base += bucket[name];
        }
      });
      timeSteps(svg, (at) => left + (at / Math.max(verdicts.bucket_hours * sums.length, 1e-3)) * (right - left), right, bottom, verdicts.bucket_hours * sums.length, width);
    });
    $("verdicts-legend").replaceChildren(...names.map((name) => h("span", {}, [h("i", { style: `background:${color[name]}` }), `${name} ${verdicts.totals[name].toLocaleString("en")} (${((100 * verdicts.totals[name]) / total).toFixed(1)} %)`])));
  }

  const percent = (part, whole) => (!part ? "–" : part < whole / 100 ? "<1 %" : `${Math.round((100 * part) / whole)} %`);
  const costColumns = [
    ["Problem", (one) => one.key, (one) => one.key || "all problems", true],
    ["Entries", (one) => one.entries, (one) => one.entries.toLocaleString("en")],
    ["Total", (one) => one.total_s, (one) => duration(one.total_s / 3600)],
    ["Median", (one) => one.median_s, (one) => duration(one.median_s / 3600)],
    ...costs.stages.map((name, at) => [name, (one) => one.stages[at] / one.total_s, (one) => percent(one.stages[at], one.total_s)]),
  ];
  const costSorting = { column: 2, down: true };
  function drawCosts() {
    const rows = [costs.all, ...[...costs.problems].sort(byColumn(costColumns[costSorting.column], costSorting.down))];
    $("costs").tBodies[0].replaceChildren(...rows.map((one) => h("tr", {}, costColumns.map(([, , cell, words]) => h("td", { class: words ? "text" : null }, cell(one))))));
    $("costs-sub").textContent = "Seconds of building and judging of evaluations, confirmations and baselines, and the share of each stage";
  }

  function drawDuplicates() {
    const rows = problems.filter((one) => one.duplicates).sort((a, b) => b.duplicates - a.duplicates).slice(0, 12);
    const share = headline.evaluations ? (100 * headline.duplicates) / headline.evaluations : 0;
    $("duplicates-sub").textContent = `Evaluations of a tree that had one already (under another judge version or form of the problem): ${headline.duplicates.toLocaleString("en")}, ${share.toFixed(1)} % of all. Of a tree that is nearly identical to an earlier one (the same source without formatting, or the same compiled code): ${headline.near_duplicates.toLocaleString("en")}, of which ${headline.answered.toLocaleString("en")} were answered from the ledger`;
    if (!rows.length) return empty("duplicates", "None.");
    chart($("duplicates"), rows.length * 22 + 8, "Problems with the most duplicates", (svg, width) => {
      const left = Math.min(260, width * 0.45), high = rows[0].duplicates;
      rows.forEach((one, row) => {
        const wide = Math.max(((width - left - 50) * one.duplicates) / high, 1);
        svg.append(text(left - 8, row * 22 + 16, one.key.length > 34 ? one.key.slice(0, 33) + "…" : one.key, { "text-anchor": "end" }));
        svg.append(s("rect", { x: left, y: row * 22 + 5, width: wide, height: 14, class: "bar muted" }));
        svg.append(text(left + wide + 6, row * 22 + 16, `${one.duplicates} of ${one.evaluations}`, {}));
      });
    });
  }

  // --- the head of the page ---

  function head() {
    const share = headline.problems ? Math.round((100 * headline.confirmed) / headline.problems) : 0;
    const weak = headline.weakened ? data.weakened.symbol : "";
    $("eyebrow").textContent = `Run ${meta.run} on ${meta.target} · ${meta.made} · ledger on ${meta.branch} at ${meta.commit.slice(0, 12)}`;
    $("title").textContent = headline.confirmed
      ? `${times(headline.geomean)}${weak} as fast as the best baseline, over ${count(headline.problems, "problem")}`
      : `No confirmed speed-up yet, over ${count(headline.problems, "problem")}`;
    $("lede").textContent = `${headline.confirmed} of ${count(headline.problems, "problem")} ${headline.problems === 1 ? "has" : "have"} a kernel that a second, fresh measurement confirmed to be faster, after ${count(headline.evaluations, "evaluation")} in ${duration(meta.hours)}.`;
    const agent = headline.against_agent, eager = headline.against_eager;
    const tiles = [
      [times(headline.geomean) + weak, "geometric-mean speed-up", "over the fastest of eager, compiled and given baseline; unbeaten count as 1×", "first"],
      [`${headline.confirmed} of ${headline.problems}`, "faster", `${share} % of problems, confirmed`],
      [String(headline.above_2), "above 2×", `${headline.problems ? Math.round((100 * headline.above_2) / headline.problems) : 0} % of problems`],
      [plain(headline.median_score), "median SOL score", "0.5 is the baseline, 1 the bound"],
      [agent ? times(agent[0]) : "–", "over agent-written PyTorch", agent ? `${count(agent[1], "champion")} with such a baseline` : "no problem here has such a baseline"],
      [eager ? times(eager[0]) : "–", "over eager PyTorch", eager ? `${count(eager[1], "champion")}` : "not measured"],
      [duration(headline.device_hours), "device time", "building and judging"],
      [headline.usd === null ? "$0" : "$" + headline.usd.toLocaleString("en", { maximumFractionDigits: headline.usd < 100 ? 2 : 0 }), "spent on models", headline.usd === null ? "no agent used one" : headline.confirmed ? `$${(headline.usd / headline.confirmed).toFixed(2)} a confirmed champion` : ""],
    ];
    $("tiles").replaceChildren(...tiles.map(([value, name, more, first]) => h("div", { class: "tile" + (first ? " first" : "") }, [h("b", {}, value), h("span", {}, name), h("small", {}, more)])));
    $("fine").textContent = `Speed-ups are of champions, by the number of their confirmation${headline.geomean_confirmed ? `; over the ${headline.confirmed} confirmed alone the geometric mean is ${times(headline.geomean_confirmed)}` : ""}. A problem without one counts as 1× and, in the median, with the baseline's score of 0.5.${meta.other_problems ? ` ${count(meta.other_problems, "other problem")} of the workspace ${meta.other_problems === 1 ? "was" : "were"} not part of this run.` : ""} ${data.history.join(" ")}`.trim();
    $("fine").append(...data.weakened.notes.flatMap((note) => [h("br"), `${note}.`]));
    $("footer").textContent = `Made by kernel-harness ${meta.version} from ${count(meta.entries, "ledger entry").replace("entrys", "entries")}. Every number can be followed to its entry: harness log PROBLEM; harness audit checks them all.`;
  }

  $("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
  for (const suite of ["", ...new Set(problems.map((one) => one.suite))]) $("suite").append(h("option", { value: suite }, suite || "all"));
  for (const id of ["find", "suite", "state"]) $(id).addEventListener("input", table);

  head();
  drawHeads($("problems"), columns, sorting, table);
  table();
  drawSpeedups();
  drawScores();
  drawMoves();
  drawSpend();
  drawVerdicts();
  drawHeads($("costs"), costColumns, costSorting, drawCosts);
  drawCosts();
  drawDuplicates();
  const asked = /^#p=(.+)$/.exec(location.hash);
  const named = asked && problems.find((one) => one.key === decodeURIComponent(asked[1]));
  if (named) open(named, false);
})();
