"use strict";
(() => {
  const { h, s, times, interval, plain, latency, duration, count, chart, text, line, logSteps, empty, trajectory, STATES, stateColumn, drawHeads, byColumn } = Charts;
  const $ = (id) => document.getElementById(id);
  const PROBLEM = "problem:";
  const parts = new Map(); // name -> value, of the parts that are no problems
  const problems = new Map(); // key -> summary
  const part = (name) => parts.get(name) || {};

  // --- moments ---

  const begin = () => Date.parse(part("meta").begin);
  const moment = (hours) => (begin() ? new Date(begin() + hours * 36e5).toISOString().slice(0, 19).replace("T", " ") + " UTC" : "");
  const age = (ms) => {
    const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
    return seconds < 60 ? `${seconds} s ago` : seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
  };
  function ago(ms) {
    if (!Number.isFinite(ms)) return null;
    const iso = new Date(ms).toISOString();
    return h("time", { datetime: iso, title: iso.slice(0, 19).replace("T", " ") + " UTC", class: "ago" }, age(ms));
  }
  const dollars = (usd) => "$" + usd.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: usd && usd < 1 ? 4 : 2 });
  const amount = (value, kind) => (kind === "usd" ? dollars(value) : value.toLocaleString("en", { maximumFractionDigits: kind === "minutes" ? 1 : 0 }));

  // --- shared pieces ---

  function flag(one) {
    const symbol = part("meta").symbol;
    return one.speedup && one.weaknesses.length ? h("abbr", { class: "flag", title: one.weaknesses.join("; "), "aria-label": "weakened: " + one.weaknesses.join("; ") }, symbol) : null;
  }
  const opener = (key) => h("button", { type: "button", class: "open", onclick: () => open(key) }, key);
  const pill = (state) => h("span", { class: "pill", "data-state": state }, state);
  const bound = (one) => (one.bound_us && one.baseline_us ? one.baseline_us / one.bound_us : null);
  const share = (one) => (one.bound_us && one.latency_us ? one.bound_us / one.latency_us : null);

  // --- head ---

  function drawHead() {
    const meta = part("meta"), headline = part("headline"), now = part("now"), weak = headline.weakened ? meta.symbol : "";
    if (!meta.run) return;
    document.title = `${meta.run} on ${meta.target}: ${headline.confirmed ? times(headline.geomean) + weak : "no confirmed speed-up"}`;
    $("eyebrow").textContent = `Run ${meta.run} on ${meta.target} · workspace ${meta.workspace}`;
    $("title").textContent = headline.confirmed
      ? `${times(headline.geomean)}${weak} as fast as the best baseline, over ${count(headline.problems, "problem")}`
      : `No confirmed speed-up yet, over ${count(headline.problems || 0, "problem")}`;
    const working = (now.workers || []).filter((one) => one.state !== "ended").length;
    const ended = now.ended ? ` The last one ended: ${now.ended.why}${now.ended.exit_code === null ? "" : ` (exit code ${now.ended.exit_code})`}.` : "";
    $("lede").replaceChildren(...((now.running || []).length
      ? [`Running with ${count(working, "worker")} and ${count((now.judges || []).length, "judge")}`, ...(now.started_at ? [", started ", ago(Date.parse(now.started_at))] : []), "."]
      : ["No run is in progress: ", h("code", {}, "harness start"), ` starts one.${ended}`]));
    const tiles = [
      [times(headline.geomean) + weak, "geometric-mean speed-up", "unbeaten problems count as 1×", "first"],
      [`${headline.confirmed} of ${headline.problems}`, "confirmed faster", `${headline.above_2} above 2×`],
      [headline.evaluations.toLocaleString("en"), "evaluations", count(headline.duplicates, "duplicate")],
      [String(now.queued ?? (part("waiting").submissions || []).length), "in the queue", count((now.judges || []).filter((one) => one.state === "busy").length, "judge") + " busy"],
      [duration(headline.device_hours), "device time", "building and judging"],
      [headline.usd ? dollars(headline.usd) : "$0", "spent on models", !headline.usd ? "no agent used a paid one" : headline.confirmed ? `${dollars(headline.usd / headline.confirmed)} a champion` : ""],
    ];
    $("tiles").replaceChildren(...tiles.map(([value, name, more, first]) => h("div", { class: "tile" + (first ? " first" : "") }, [h("b", {}, value), h("span", {}, name), h("small", {}, more)])));
    $("fine").replaceChildren(...[...meta.history, ...meta.weakened].flatMap((note, number) => (number ? [h("br"), `${note}.`] : [`${note}.`])));
    $("footer").textContent = `kernel-harness ${meta.version}, ledger on ${meta.branch}. Times are UTC. This page changes nothing; harness log PROBLEM shows every entry, harness report writes a page to keep.`;
  }

  function drawAlerts() {
    const now = part("now"), alerts = [];
    if (parts.get("fault")) alerts.push(["This page cannot be brought up to date", part("fault").message]);
    if (now.paused) alerts.push(["The run is paused", now.paused]);
    for (const message of now.messages || []) if (message !== now.paused) alerts.push(["Note", message]);
    const words = JSON.stringify(alerts);
    if ($("alerts").dataset.words === words) return;
    $("alerts").dataset.words = words;
    $("alerts").replaceChildren(...alerts.map(([what, message]) => h("p", { class: "alert" }, [h("b", {}, what + ": "), message])));
  }

  // --- work in progress ---

  function drawWorkers() {
    const spending = part("spending"), limit = spending.worker_limit_usd;
    const rows = (part("now").workers || []).map((one) => {
      const usd = ((spending.workers || {})[one.worker] || {}).usd ?? one.usd;
      const used = usd || limit ? `${dollars(usd || 0)}${limit ? ` of ${dollars(limit)}` : ""} · ` : "";
      return h("li", {}, [
        h("div", { class: "line" }, [h("b", {}, one.worker), pill(one.state), one.problem ? h("span", { class: "grow" }, opener(one.problem)) : h("span", { class: "grow" }, one.agent), h("span", { class: "end" }, used + count(one.evaluations, "evaluation"))]),
        one.failure || one.message ? h("p", { class: "under", title: one.failure || one.message }, one.failure && one.state !== "working" ? `failed: ${one.failure}` : one.message || one.failure) : null,
      ]);
    });
    $("workers").replaceChildren(...(rows.length ? rows : [h("li", { class: "empty" }, "No worker runs now.")]));
  }

  function drawJudges() {
    const rows = (part("now").judges || []).map((one) => h("li", {}, [
      h("div", { class: "line" }, [h("b", {}, one.device), pill(one.state), one.problem ? h("span", { class: "grow" }, [opener(one.problem), one.worker ? ` of ${one.worker}` : "", one.kind && one.kind !== "evaluation" ? ` (${one.kind})` : ""]) : null, one.stage ? h("span", { class: "end" }, one.stage + (one.of ? ` ${one.done}/${one.of}` : "")) : null]),
      one.of ? h("progress", { max: one.of, value: one.done, "aria-label": `${one.device}: ${one.stage}` }) : null,
      one.failure ? h("p", { class: "under" }, one.failure) : null,
    ]));
    $("judges").replaceChildren(...(rows.length ? rows : [h("li", { class: "empty" }, "No judge runs now.")]));
    const busy = new Set((part("now").judges || []).filter((one) => one.kind === "evaluation").map((one) => `${one.problem} ${one.worker}`));
    const waiting = (part("waiting").submissions || []).filter((one) => !busy.has(`${one.problem} ${one.worker}`));
    const queue = waiting.map((one) => h("li", {}, [
      h("div", { class: "line" }, [h("span", { class: "grow" }, [opener(one.problem), ` of ${one.worker}`]), h("span", { class: "end" }, ago(one.at * 1000))]),
      one.subject ? h("p", { class: "under" }, one.subject) : null,
    ]));
    $("queue").replaceChildren(...(queue.length ? queue : [h("li", { class: "empty" }, "No submission waits.")]));
  }

  // --- champions against bounds ---

  const ROWS = 14; // so many problems have a row with a name each; more have a column

  function drawChampions() {
    const box = $("champions");
    const rows = [...problems.values()].filter((one) => (one.state === "confirmed" || one.state === "unconfirmed") && one.speedup).sort((a, b) => b.speedup - a.speedup || a.key.localeCompare(b.key));
    const others = problems.size - rows.length, reached = Math.max(1.2, ...rows.map((one) => one.high || one.speedup));
    $("champions-note").textContent = rows.length ? `Logarithmic scale. Pale: not confirmed yet.${rows.some((one) => bound(one) > reached * 4) ? " An arrow: the bound is beyond the chart." : ""}${others ? ` ${count(others, "problem")} without a solution that passed ${others === 1 ? "is" : "are"} left out.` : ""}` : "";
    if (!rows.length) return empty(box, "No solution has passed yet.");
    const bounds = rows.map(bound).filter((value) => value && value <= reached * 4);
    const high = Math.max(reached, ...bounds) * 1.06, low = Math.min(1, ...rows.map((one) => one.low || one.speedup)) * 0.97;
    const words = (one) => `${one.key}: ${interval(one)}${one.weaknesses.length ? part("meta").symbol : ""}${one.state === "confirmed" ? "" : ", not confirmed"}${bound(one) ? `; bound ${times(bound(one))}` : "; no bound"}`;
    (rows.length <= ROWS ? drawRows : drawColumns)(box, rows, low, high, words);
  }
  function linked(one, words, children) {
    return s("a", { href: "#p=" + encodeURIComponent(one.key), "aria-label": words(one), onclick: (event) => { event.preventDefault(); open(one.key); } }, [s("title", {}, words(one)), ...children]);
  }
  function drawRows(box, rows, low, high, words) {
    const tall = 42;
    chart(box, rows.length * tall + 28, "Champions against bounds, the fastest first", (svg, width, height) => {
      const left = 4, right = width - 14, bottom = height - 24;
      const x = (value) => left + ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (right - left);
      for (const value of logSteps(low, high)) {
        svg.append(line(x(value), 2, x(value), bottom, value === 1 ? "axis" : "grid"), text(x(value), bottom + 16, value + "×", { "text-anchor": x(value) > right - 14 ? "end" : x(value) < left + 14 ? "start" : "middle" }));
      }
      rows.forEach((one, number) => {
        const top = number * tall + 2, y = top + 20, limit = bound(one), from = Math.min(x(1), x(one.speedup));
        const name = one.key.length * 7 > width - 150 ? one.key.slice(0, Math.floor((width - 150) / 7)) + "…" : one.key;
        const children = [
          s("rect", { x: 0, y: top, width, height: tall - 2, class: "hit" }),
          text(left, top + 14, name, { class: "label" }),
          text(right, top + 14, times(one.speedup) + (one.weaknesses.length ? part("meta").symbol : "") + (limit ? ` of ${times(limit)}` : ""), { "text-anchor": "end" }),
          s("rect", { x: from, y, width: Math.max(Math.abs(x(one.speedup) - x(1)), 1), height: 13, rx: 2, class: one.state === "confirmed" ? "bar" : "bar unsure" }),
        ];
        if (one.low) children.push(line(x(one.low), y + 6.5, x(one.high), y + 6.5, "whisker"));
        if (limit && limit <= high) children.push(line(x(limit), y - 2, x(limit), y + 15, "mark"));
        else if (limit) children.push(s("path", { d: `M${right - 7},${y + 1}l7,5.5l-7,5.5`, class: "mark", fill: "none" }));
        svg.append(linked(one, words, children));
      });
    });
  }
  function drawColumns(box, rows, low, high, words) {
    chart(box, 270, "Champions against bounds, the fastest first", (svg, width, height) => {
      const left = 40, right = width - 8, top = 10, bottom = height - 24;
      const y = (value) => bottom - ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (bottom - top);
      for (const value of logSteps(low, high)) svg.append(line(left, y(value), right, y(value), value === 1 ? "axis" : "grid"), text(left - 6, y(value) + 4, value + "×", { "text-anchor": "end" }));
      const step = (right - left) / rows.length, wide = Math.max(Math.min(step - (step > 3 ? 1 : 0), 48), 0.7);
      rows.forEach((one, number) => {
        const x = left + number * step, limit = bound(one), upper = Math.min(y(1), y(one.speedup));
        const children = [s("rect", { x, y: upper, width: wide, height: Math.max(Math.abs(y(one.speedup) - y(1)), 0.7), class: one.state === "confirmed" ? "bar" : "bar unsure" })];
        if (step > 5 && one.low) children.push(line(x + wide / 2, y(one.low), x + wide / 2, y(one.high), "whisker"));
        if (limit && limit <= high) children.push(line(x, y(limit), x + wide, y(limit), "mark"));
        svg.append(linked(one, words, children));
      });
      svg.append(text(right, bottom + 18, count(rows.length, "problem"), { "text-anchor": "end" }));
    });
  }

  // --- the table: a row is kept for each problem, so that focus and selection stay ---

  function spark(one) {
    const width = 112, height = 26, gains = one.steps.filter((step) => step.gain);
    if (!one.dots.length && !gains.length) return h("span", { class: "state" }, "–");
    const dots = one.dots.length > 24 ? one.dots.filter((_, number) => number % Math.ceil(one.dots.length / 24) === 0) : one.dots;
    const values = [1, ...dots.map((dot) => dot[1]), ...gains.map((step) => step.speedup)];
    const when = [...dots.map((dot) => dot[0]), ...gains.map((step) => step.at)], from = Math.min(...when), until = Math.max(...when);
    const high = Math.max(...values) * 1.02, low = Math.min(...values) * 0.98;
    const x = (at) => 3 + (until > from ? (at - from) / (until - from) : 0.5) * (width - 6);
    const y = (value) => height - 3 - ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (height - 6);
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": `${count(gains.length, "gain")} to ${times(Math.max(...values))}` });
    svg.append(line(0, y(1), width, y(1), "ref"));
    // One path of points, and not a circle for each: a table of 235 problems is there sooner.
    if (dots.length) svg.append(s("path", { d: dots.map(([at, value]) => `M${x(at).toFixed(1)},${y(value).toFixed(1)}h0`).join(""), class: "dots" }));
    let path = "";
    for (const step of gains) path += path ? `H${x(step.at)}V${y(step.speedup)}` : `M${x(step.at)},${y(step.speedup)}`;
    if (path) svg.append(s("path", { d: path + `H${width}`, class: "step" }));
    return svg;
  }
  const columns = [
    ["Problem", (one) => one.key, null, true],
    ["Speed-up", (one) => (one.state === "outdated" ? null : one.speedup), (one) => h("span", {}, [times(one.speedup, 3), flag(one)])],
    ["Trajectory", (one) => one.steps.length, spark, true],
    ["95 %", (one) => one.low, (one) => (one.low ? `${plain(one.low, 3)} – ${plain(one.high, 3)}` : "–")],
    ["Of bound", share, (one) => (share(one) ? (100 * share(one)).toFixed(0) + " %" : "–")],
    ["Score", (one) => one.score, (one) => plain(one.score)],
    ["Latency", (one) => one.latency_us, (one) => latency(one.latency_us)],
    ["Evaluations", (one) => one.evaluations, (one) => one.evaluations.toLocaleString("en")],
    ["Since gain", (one) => one.since_gain, (one) => one.since_gain.toLocaleString("en")],
    stateColumn,
    ["By", (one) => one.worker || "", (one) => one.worker || "–", true],
  ];
  const sorting = { column: 1, down: true };
  const tableRows = new Map(); // key -> row

  function drawRow(one, fresh) {
    let row = tableRows.get(one.key);
    if (!row) {
      row = h("tr", { "data-problem": one.key }, [h("td", { class: "text" }, opener(one.key))]);
      tableRows.set(one.key, row);
    }
    while (row.cells.length > 1) row.deleteCell(-1);
    row.classList.remove("fresh");
    if (fresh) void row.offsetWidth; // the animation starts again only after a layout without it
    row.append(...columns.slice(1).map(([, , cell, words]) => h("td", { class: words ? "text" : null }, cell(one))));
    row.classList.toggle("fresh", fresh);
  }
  function orderRows() {
    const wanted = $("find").value.trim().toLowerCase(), state = $("state").value;
    const rows = [...problems.values()].filter((one) => (!state || one.state === state) && (!wanted || [one.key, one.worker].some((word) => (word || "").toLowerCase().includes(wanted))));
    rows.sort(byColumn(columns[sorting.column], sorting.down));
    const body = $("problems").tBodies[0], nodes = rows.map((one) => tableRows.get(one.key));
    if (nodes.length !== body.rows.length || nodes.some((node, number) => body.rows[number] !== node)) {
      const focused = document.activeElement;
      body.replaceChildren(...nodes);
      if (focused && focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
    }
    $("count").textContent = rows.length === problems.size ? count(rows.length, "problem") : `${rows.length} of ${count(problems.size, "problem")}`;
  }

  // --- verdicts and spend ---

  const KINDS = { PASSED: "passed", SUSPECT: "suspect", REWARD_HACK: "hack" };
  let newest = null; // time of the newest entry that was shown
  function drawRecent() {
    const entries = part("recent").entries || [];
    $("recent").replaceChildren(...(entries.length ? entries.map((one) => h("li", { class: newest && one.at > newest ? "fresh" : null }, [
      h("div", { class: "line" }, [
        h("span", { class: "verdict " + (KINDS[one.verdict] || "") }, one.verdict || "–"), h("span", { class: "grow" }, opener(one.problem)),
        one.speedup ? h("span", {}, [times(one.speedup, 3), flag(one)]) : null,
        h("span", { class: "end" }, [(one.kind === "confirmation" ? "confirmation · " : "") + (one.worker || "?") + " · ", ago(Date.parse(one.at))]),
      ]),
      one.reason || one.subject ? h("p", { class: "under", title: one.reason || one.subject }, one.reason || one.subject) : null,
    ])) : [h("li", { class: "empty" }, "Nothing has been judged yet.")]));
    newest = entries.length ? entries[0].at : newest || "0";
  }
  function drawSpending() {
    const rows = (part("spending").rows || []).map((one) => {
      const started = Date.parse(part("now").started_at), running = (part("now").running || []).length;
      const used = one.kind === "minutes" ? (running && started ? (Date.now() - started) / 60000 : null) : one.used;
      const near = one.limit && used >= 0.9 * one.limit;
      const said = (used === null ? "–" : amount(used, one.kind)) + (one.limit ? ` of ${amount(one.limit, one.kind)}` : ", no limit");
      return h("li", {}, [
        h("div", { class: "line" }, [h("span", { class: "grow" }, `${one.name} ${one.scope}`), h("span", { class: near ? "flag" : null }, said)]),
        one.limit && used !== null ? h("progress", { max: one.limit, value: Math.min(used, one.limit), class: near ? "near" : null, "aria-label": `${one.name} ${one.scope}` }) : null,
      ]);
    });
    $("spending").replaceChildren(...(rows.length ? rows : [h("li", { class: "empty" }, "No limit is set, and no agent has used a model.")]));
  }

  // --- one problem ---

  let opened = null;
  function open(key, remember = true) {
    if (!problems.has(key)) return;
    opened = key;
    drawDetail();
    if (!$("detail").open) $("detail").showModal();
    drawTrajectory();
    if (remember) history.replaceState(null, "", "#p=" + encodeURIComponent(key));
  }
  function drawDetail() {
    const one = problems.get(opened), symbol = part("meta").symbol;
    const pairs = [
      ["Speed-up", one.speedup ? `${interval(one)}${one.weaknesses.length ? symbol : ""}${one.state === "confirmed" ? "" : `, ${STATES[one.state]}`}` : "–"],
      ["Latency now", latency(one.latency_us)], ["Fastest baseline", latency(one.baseline_us)],
      ["Bound (SOL)", one.bound_us ? `${latency(one.bound_us)}, ${times(bound(one))}` : "–"], ["SOL score", plain(one.score)], ["Trust", one.trust || "–"],
      ["Evaluations", `${one.evaluations} by ${count(one.workers, "worker")}`], ["Since the last gain", count(one.since_gain, "evaluation")],
      ["Device time", duration(one.cost_s / 3600)],
      ["Verdicts", Object.entries(one.verdicts).sort((a, b) => b[1] - a[1]).map(([name, number]) => `${number} ${name}`).join(", ") || "–"],
      ...one.weaknesses.map((sentence) => [`${symbol} Weakened`, sentence]),
    ];
    const focused = document.activeElement && document.activeElement.id;
    const heads = ["Speed-up", "95 %", "Confirmed", "Latency", "Worker", "Seq", "When", "Commit"];
    const rows = [...one.steps].reverse().map((step) => h("tr", {}, [times(step.speedup, 3) + (step.champion ? ", champion" : ""), step.low ? `${plain(step.low, 3)} – ${plain(step.high, 3)}` : "–", step.confirmation ? times(step.confirmation.speedup, 3) : "no", latency(step.latency_us), step.worker || "?", String(step.seq), moment(step.at)].map((words) => h("td", { class: "text" }, words)).concat(h("td", { class: "text mono" }, (step.commit || "–").slice(0, 10)))));
    $("detail-body").replaceChildren(
      h("header", {}, [h("h2", { id: "detail-title" }, one.key), h("button", { type: "button", id: "close", onclick: () => $("detail").close(), "aria-label": "Close" }, "Close")]),
      h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", { class: /^Verdicts|Weakened$/.test(name) ? "wide" : null }, [h("dt", {}, name), h("dd", {}, value)]))),
      h("div", { id: "trajectory" }),
      ...(rows.length ? [h("h3", {}, "Gains and champions, the newest first"), h("div", { class: "scroll short", tabindex: "0", role: "region", "aria-label": "Gains and champions" }, h("table", { id: "steps" }, [h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: "plain text" }, name)))), h("tbody", {}, rows)]))] : []),
      h("p", { class: "sub" }, ["Every entry: ", h("code", {}, `harness log ${one.key}`)]),
    );
    if (focused === "close") $("close").focus();
  }
  function drawTrajectory() {
    trajectory($("trajectory"), problems.get(opened), moment, (step) => ({ href: "#p=" + encodeURIComponent(opened), onclick: (event) => event.preventDefault(), "data-seq": step.seq }));
  }
  $("detail").addEventListener("close", () => { opened = null; history.replaceState(null, "", location.pathname); });
  $("detail").addEventListener("click", (event) => { if (event.target === $("detail")) $("detail").close(); });

  // --- changes ---

  let loaded = false;
  function apply(changes) {
    const changed = new Set(), touched = [];
    for (const [name, value] of Object.entries(changes)) {
      if (!name.startsWith(PROBLEM)) {
        if (value === null) parts.delete(name);
        else parts.set(name, value);
        changed.add(name);
        continue;
      }
      const key = name.slice(PROBLEM.length);
      touched.push(key);
      if (value !== null) problems.set(key, value);
      else {
        problems.delete(key);
        tableRows.delete(key);
      }
    }
    for (const key of touched) if (problems.has(key)) drawRow(problems.get(key), loaded);
    if (touched.length) { orderRows(); drawChampions(); }
    const any = (...names) => names.some((name) => changed.has(name));
    if (any("meta", "headline", "now", "waiting")) drawHead();
    if (any("now", "fault")) drawAlerts();
    if (any("now", "spending")) { drawWorkers(); drawSpending(); }
    if (any("now", "waiting")) drawJudges();
    if (any("recent")) drawRecent();
    if (any("meta")) for (const one of problems.values()) if (one.weaknesses.length && !touched.includes(one.key)) drawRow(one, false);
    if (opened && touched.includes(opened)) {
      if (problems.has(opened)) { drawDetail(); drawTrajectory(); }
      else $("detail").close();
    }
    if (!loaded) {
      loaded = true;
      $("main").dataset.loaded = "true";
      const asked = /^#p=(.+)$/.exec(location.hash);
      if (asked) open(decodeURIComponent(asked[1]), false);
    }
  }

  function connection(state, words) {
    $("connection").dataset.state = state;
    if ($("connection").textContent !== words) $("connection").textContent = words;
  }
  const source = new EventSource("events");
  source.addEventListener("open", () => connection("live", "live"));
  source.addEventListener("parts", (event) => apply(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) connection("refused", "ended: open the URL that harness serve printed last");
    else connection("lost", "connection lost, trying again");
  });

  setInterval(() => {
    for (const node of document.querySelectorAll("time.ago")) node.textContent = age(Date.parse(node.dateTime));
    if ((part("spending").rows || []).some((one) => one.kind === "minutes")) drawSpending();
  }, 1000);
  $("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["find", "state"]) $(id).addEventListener("input", orderRows);
  drawHeads($("problems"), columns, sorting, orderRows);
})();
