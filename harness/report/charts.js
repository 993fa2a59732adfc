"use strict";
// Shared by the report and the live page: elements, formatted numbers, charts, the table of problems.
const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  // --- making elements ---

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of [].concat(children ?? [])) if (child !== null && child !== undefined) node.append(child);
    return node;
  }
  const h = (tag, attributes, children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes, children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // --- numbers as people read them ---

  const times = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits) + "×");
  const interval = (one) => times(one.speedup, 3) + (one.low ? ` [${plain(one.low, 3)}, ${plain(one.high, 3)}]` : "");
  const plain = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  function latency(us) {
    if (us === null || us === undefined) return "–";
    const [value, unit] = us >= 1e6 ? [us / 1e6, "s"] : us >= 1e4 ? [us / 1e3, "ms"] : [us, "µs"];
    return (value >= 100 ? Math.round(value).toString() : value.toPrecision(3)) + " " + unit;
  }
  const duration = (hours) =>
    hours >= 48 ? (hours / 24).toFixed(1) + " days" : hours >= 1 ? hours.toFixed(1) + " h" : hours >= 1 / 60 ? (hours * 60).toFixed(0) + " min" : (hours * 3600).toFixed(hours * 3600 < 10 ? 1 : 0) + " s";
  const count = (number, noun) => number.toLocaleString("en") + " " + noun + (number === 1 ? "" : "s");

  // --- charts: each draws itself for the width that it has ---

  const charts = new Map();
  function chart(box, height, label, draw) {
    const paint = () => {
      const width = Math.max(box.clientWidth, 220);
      const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label });
      draw(svg, width, height);
      box.replaceChildren(svg);
    };
    charts.set(box, paint);
    paint();
  }
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => charts.forEach((paint, box) => (box.isConnected ? paint() : charts.delete(box))));
  });

  const text = (x, y, words, more) => s("text", { x, y, ...more }, words);
  const line = (x1, y1, x2, y2, name) => s("line", { x1, y1, x2, y2, class: name });

  function niceSteps(low, high, wanted) {
    const raw = (high - low) / Math.max(1, wanted) || 1;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(+at.toPrecision(12));
    return found;
  }
  function logSteps(low, high) {
    const found = [];
    for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10)
      for (const digit of [1, 1.5, 2, 3, 5, 7]) {
        const value = +(decade * digit).toPrecision(6);
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    return found.length > 7 ? found.filter((value) => /^[125]/.test(value.toExponential()) && !/^1\.5/.test(value.toExponential())) : found;
  }
  function timeSteps(svg, x, right, bottom, hours, width, begin = 0) {
    const long = hours - begin, days = long > 72;
    const [scale, unit] = days ? [24, "days"] : long > 3 || hours > 12 ? [1, "hours"] : long > 3 / 60 ? [1 / 60, "minutes"] : [1 / 3600, "seconds"];
    for (const at of niceSteps(begin / scale, hours / scale, width / 90)) {
      svg.append(line(x(at * scale), bottom, x(at * scale), bottom + 4, "axis"));
      svg.append(text(x(at * scale), bottom + 17, String(at), { "text-anchor": x(at * scale) > right - 14 ? "end" : "middle" }));
    }
    svg.append(text(right, bottom + 32, unit + " since the first entry", { "text-anchor": "end" }));
  }

  function empty(box, words) {
    charts.delete(box);
    box.replaceChildren(h("p", { class: "empty" }, words));
  }

  // --- one problem's trajectory ---

  function trajectory(box, one, moment, linkStep) {
    if (!one.steps.length && !one.dots.length) return empty(box, "Nothing has passed yet, so there is no trajectory.");
    const bound = one.bound_us && one.baseline_us ? one.baseline_us / one.bound_us : null;
    const values = [1, ...one.dots.map((dot) => dot[1]), ...one.steps.flatMap((step) => [step.speedup, step.low, step.high])].filter((value) => value > 0);
    const reached = Math.max(...values);
    // A bound far above would press everything else into one line: it is then named in words alone.
    const drawn = bound && bound < reached * 3 ? bound : null;
    chart(box, 330, `Speed-up of ${one.key} over the fastest baseline, over time`, (svg, width, height) => {
      const left = 52, right = width - 14, top = 34, bottom = height - 42;
      const low = Math.min(...values) * 0.96, high = Math.max(reached, drawn || 0) * 1.06;
      // The stretch in which this problem was worked on, not the whole run: most problems have a few busy hours.
      const when = [...one.dots.map((dot) => dot[0]), ...one.steps.map((step) => step.at)];
      const from = Math.min(...when), margin = Math.max((Math.max(...when) - from) * 0.06, 0.02), until = Math.max(...when) + margin;
      const begin = Math.max(0, from - margin);
      const x = (at) => left + ((at - begin) / (until - begin)) * (right - left);
      const y = (times) => top + ((Math.log(high) - Math.log(times)) / (Math.log(high) - Math.log(low))) * (bottom - top);
      for (const value of high / low > 1.8 ? logSteps(low, high) : niceSteps(low, high, 5)) {
        svg.append(line(left, y(value), right, y(value), "grid"));
        svg.append(text(left - 7, y(value) + 4, value + "×", { "text-anchor": "end" }));
      }
      svg.append(line(left, bottom, right, bottom, "axis"));
      timeSteps(svg, x, right, bottom, until, width, begin);
      svg.append(text(left, 10, "speed-up" + (high / low > 1.8 ? ", logarithmic" : ""), {}));
      const references = [[1, "", `fastest baseline ${latency(one.baseline_us)}`], [drawn, " bound", `hardware's bound (SOL) ${latency(one.bound_us)}`]];
      for (const [times, name, words] of references) {
        if (!times) continue;
        svg.append(line(left, y(times), right, y(times), "ref" + name));
        svg.append(text(right, y(times) - 5, words, { class: "reftext" + name, "text-anchor": "end" }));
      }
      for (const [at, times] of one.dots) svg.append(s("circle", { cx: x(at), cy: y(times), r: 2.2, class: "dot" }));
      let path = "";
      for (const step of one.steps.filter((each) => each.gain)) // a champion that is no gain has a ring beside the line
        path += path ? `H${x(step.at)}V${y(step.speedup)}` : `M${x(step.at)},${y(step.speedup)}`;
      if (path) svg.append(s("path", { d: path + `H${right}`, class: "step" }));
      for (const step of one.steps) {
        const words = `seq ${step.seq}: ${interval(step)} by ${step.worker || "?"} at ${moment(step.at)}${step.confirmation ? `, confirmed ${interval(step.confirmation)}` : ""}`;
        const link = s("a", { ...linkStep(step), class: step.confirmation ? "sure" : null, "data-commit": step.commit, "aria-label": words });
        if (step.low) {
          const at = x(step.at);
          link.append(s("path", { d: `M${at - 4},${y(step.high)}h8M${at},${y(step.high)}V${y(step.low)}M${at - 4},${y(step.low)}h8`, class: "interval" }));
        }
        link.append(s("circle", { cx: x(step.at), cy: y(step.speedup), r: 5 }), s("title", {}, words));
        svg.append(link);
      }
    });
    if (bound && !drawn) box.after(h("p", { class: "sub" }, `The hardware's bound (SOL) is ${latency(one.bound_us)}, ${times(bound)}: above this chart.`));
  }

  // --- the table of problems: a column is [name, value to order by, cell, true for a column of words] ---

  const STATES = { confirmed: "confirmed", unconfirmed: "not confirmed", outdated: "history", none: "nothing passed", untried: "untried" };
  const stateColumn = ["State", (one) => Object.keys(STATES).indexOf(one.state), (one) => h("span", { class: "state" }, [STATES[one.state], one.state === "outdated" ? h("span", { class: "flag" }, ` judge protocol ${one.judge_protocol}`) : null, one.verdicts.SUSPECT ? h("span", { class: "flag" }, ` ${one.verdicts.SUSPECT} SUSPECT`) : null]), true];

  function drawHeads(table, columns, sorting, changed) {
    table.tHead.replaceChildren(h("tr", {}, columns.map(([name, , , words], number) => {
      const active = sorting.column === number;
      const sort = () => {
        Object.assign(sorting, { column: number, down: active ? !sorting.down : !words });
        drawHeads(table, columns, sorting, changed);
        changed();
        table.tHead.querySelectorAll("button")[number].focus();
      };
      return h("th", { scope: "col", class: words ? "text" : null, "aria-sort": active ? (sorting.down ? "descending" : "ascending") : null }, h("button", { type: "button", onclick: sort }, name));
    })));
  }
  const words = new Intl.Collator("en", { numeric: true });
  // A missing value stands last in both directions.
  const byColumn = ([, value], down) => (a, b) => {
    const left = value(a) ?? null, right = value(b) ?? null;
    const order = typeof left === "string" ? words.compare(left, right) : left - right;
    return (left === null || right === null ? (left === null) - (right === null) : down ? -order : order) || words.compare(a.key, b.key);
  };

  return { h, s, times, interval, plain, latency, duration, count, chart, text, line, niceSteps, logSteps, timeSteps, empty, trajectory, STATES, stateColumn, drawHeads, byColumn };
})();
