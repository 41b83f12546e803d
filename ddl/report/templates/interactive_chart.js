// The page's interactive chart: one uPlot, made anew for each choice of axes and lines.
(() => {
  "use strict";
  const find = (name) => document.getElementById(`chart${name}`);
  const data = JSON.parse(find("-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const buttons = [...find("-legend").querySelectorAll("[data-line]")];
  const wholes = [...find("-legend").querySelectorAll(".whole")];
  let plot = null, shown = [], near = null; // uPlot; the lines it draws; the number of the one that stands out
  const pressed = (button) => button.getAttribute("aria-pressed") === "true";
  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const members = (whole) => [...whole.parentNode.querySelectorAll("[data-line]")].filter((each) => !each.hidden);

  // Numbers as text, by unit.
  const prefixed = (value, places, name, prefixes) => {
    const [scale, prefix] = prefixes.find(([least]) => Math.abs(value) >= least) ?? (value ? prefixes.at(-1) : [1, ""]);
    return `${+(value / scale).toPrecision(places)}${name && "\u00a0"}${prefix}${name}`;
  };
  const LARGE = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const SMALL = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
  const text = (value, unit, places = 4) => {
    if (unit === "share") return `${+(100 * value).toPrecision(places)}\u00a0%`;
    if (unit === "bytes") return prefixed(value, places, "B", LARGE);
    if (unit === "seconds") return value >= 1e4 ? `${+value.toPrecision(places)}\u00a0s` : prefixed(value, places, "s", SMALL);
    if (unit === "count") return places < 4 ? prefixed(value, places, "", LARGE) : Math.round(value).toLocaleString("en");
    return String(+value.toPrecision(places));
  };

  // A line's points as the axes show them; low and high are null where there is no band.
  const points = (line, x, y, xLog, yLog) => {
    const found = { x: [], mean: [], low: [], high: [] };
    const [mean, low, high] = line.y[y] ?? [[]];
    (line.x[x] ?? []).forEach((across, i) => {
      if (across === null || mean[i] === null || mean[i] === undefined) return;
      if ((xLog && across <= 0) || (yLog && mean[i] <= 0)) return;
      const point = { x: across, mean: mean[i], low: low ? low[i] : null, high: high ? high[i] : null };
      for (const part in found) found[part].push(point[part]);
    });
    return found;
  };

  // Around all values, and as far as the ends of bands go, but by no more than half as much again.
  const limits = (values, log, from = null, ends = []) => {
    let low = Math.min(...values), high = Math.max(...values);
    const seen = ends.filter((end) => end !== null && (!log || end > 0)), half = log ? (high / low) ** 0.5 : (high - low) / 2;
    const [least, most] = log ? [low / half, high * half] : [low - half, high + half];
    [low, high] = [Math.max(least, Math.min(low, ...seen)), Math.min(most, Math.max(high, ...seen))];
    if (from !== null && from < high) low = Math.max(low, from);
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [-0.5, 0.5].map((edge) => low + edge * (Math.abs(low) || 1));
    const [ratio, margin] = [(high / low) ** 0.03, 0.03 * (high - low)];
    return log ? [low / ratio, high * ratio] : [low - margin, high + margin];
  };

  // The ticks of a log axis that need not begin at a power of ten.
  const ticks = (u, axis, min, max) => {
    for (const digits of [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++)
        found.push(...digits.map((digit) => digit * 10 ** power).filter((value) => value >= min && value <= max));
      if (found.length > 2) return found;
    }
    const power = 10 ** Math.floor(Math.log10((max - min) / 5));
    const step = power * [1, 2, 5, 10].find((digit) => max - min < 6 * digit * power), first = Math.ceil(min / step);
    return Array.from({ length: Math.max(0, Math.floor(max / step) - first + 1) }, (_, i) => (first + i) * step);
  };

  const bands = (u) => {
    const all = find("-bands").checked;
    u.ctx.save();
    const plane = new Path2D();
    plane.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    u.ctx.clip(plane);
    for (const { number, at } of shown) {
      if (!(number === near || (all && near === null)) || at.low.every((low) => low === null)) continue;
      const y = (value) => u.valToPos(Math.max(value, u.scales.y.distr === 3 ? u.scales.y.min : -Infinity), "y", true);
      u.ctx.beginPath();
      at.x.forEach((x, i) => u.ctx.lineTo(u.valToPos(x, "x", true), y(at.high[i] ?? at.mean[i])));
      for (let i = at.x.length - 1; i >= 0; i--) u.ctx.lineTo(u.valToPos(at.x[i], "x", true), y(at.low[i] ?? at.mean[i]));
      u.ctx.globalAlpha = number === near ? 0.35 : 0.18;
      u.ctx.fillStyle = data.lines[number].colours[+dark.matches];
      u.ctx.fill();
    }
    u.ctx.restore();
  };

  const target = (u, value, ink) => {
    if (value === null || value < u.scales.y.min || value > u.scales.y.max) return;
    const y = u.valToPos(value, "y", true);
    u.ctx.fillStyle = ink;
    for (let x = 0; x < u.bbox.width; x += 4 * devicePixelRatio) u.ctx.fillRect(u.bbox.left + x, y, devicePixelRatio, devicePixelRatio);
  };

  // The number of the line that passes next to the cursor, and its evaluation there.
  const nearest = (u) => {
    let best = [30, null, 0];
    for (const { number, at } of shown) {
      const place = at.x.map((x, i) => [u.valToPos(x, "x"), u.valToPos(at.mean[i], "y")]);
      place.forEach(([x, y], i) => {
        const [fromX, fromY] = place[Math.max(0, i - 1)];
        const length = (x - fromX) ** 2 + (y - fromY) ** 2;
        const share = length ? ((u.cursor.left - fromX) * (x - fromX) + (u.cursor.top - fromY) * (y - fromY)) / length : 1;
        const along = Math.min(1, Math.max(0, share));
        const far = Math.hypot(fromX + along * (x - fromX) - u.cursor.left, fromY + along * (y - fromY) - u.cursor.top);
        if (far < best[0]) best = [far, number, along < 0.5 ? Math.max(0, i - 1) : i];
      });
    }
    return best.slice(1);
  };

  const emphasise = (number, index) => {
    const place = shown.findIndex((each) => each.number === number);
    if (place < 0) number = null;
    if (number !== near) {
      near = number;
      plot?.setSeries(number === null ? null : place + 1, { focus: true });
      plot?.redraw(false);
    }
    const value = find("-value");
    if (number === null) return value.replaceChildren("\u00a0");
    const { at } = shown[place], i = index ?? at.x.length - 1;
    const [x, y] = [data.x[find("-x").value], data.y[find("-y").value]];
    const band = at.low[i] === null ? "" : ` (95\u00a0%: ${text(at.low[i], y.unit)} to ${text(at.high[i], y.unit)})`;
    const label = Object.assign(document.createElement("strong"), { textContent: data.lines[number].label });
    value.replaceChildren(label, `: ${y.text} ${text(at.mean[i], y.unit)}${band}; ${x.text}: ${text(at.x[i], x.unit)}`);
  };

  const size = () => ({ width: find("-plot").clientWidth, height: Math.max(320, Math.min(460, 0.6 * innerHeight)) });

  const draw = () => {
    const [x, y, xLog, yLog] = [find("-x").value, find("-y").value, find("-x-log").checked, find("-y-log").checked];
    plot?.destroy();
    [plot, near] = [null, null];
    shown = buttons.filter((button) => pressed(button) && !button.hidden).map((button) => +button.dataset.line);
    shown = shown.map((number) => ({ number, at: points(data.lines[number], x, y, xLog, yLog) })).filter(({ at }) => at.x.length);
    wholes.forEach((whole) => press(whole, members(whole).some(pressed)));
    if (!shown.length) return find("-value").replaceChildren("No line is shown.");
    find("-value").replaceChildren("\u00a0");
    const style = getComputedStyle(document.documentElement);
    const [ink, rule] = ["--ink", "--rule"].map((name) => style.getPropertyValue(name).trim());
    const axis = (name, { unit, text: label }, log) => ({
      scale: name, stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 },
      label: label + (log ? ", log scale" : ""), size: name === "y" ? 70 : 46, labelSize: 24, font: "12px sans-serif",
      labelFont: "13px sans-serif", values: (u, splits) => splits.map((value) => (value === null ? "" : text(value, unit, unit === "share" ? 5 : 3))),
      ...(log ? { splits: ticks, filter: (u, splits) => splits } : {}),
    });
    const scale = (values, log, ...more) => {
      const [min, max] = limits(values, log, ...more);
      return { time: false, auto: false, distr: log ? 3 : 1, min, max, range: (u, low, high) => [low, high] };
    };
    const goal = data.y[y].target, goals = goal === null || (yLog && goal <= 0) ? [] : [goal];
    const all = (part) => shown.flatMap(({ at }) => at[part]);
    const series = shown.map(({ number }) => {
      const line = data.lines[number], width = line.front ? 2.2 : 1;
      const dash = line.dashes.map((length) => length * width * devicePixelRatio);
      return { stroke: line.colours[+dark.matches], width, dash, spanGaps: true, points: { show: false } };
    });
    plot = new uPlot(
      {
        ...size(),
        series: [{}, ...series],
        scales: { x: scale(all("x"), xLog), y: scale([...all("mean"), ...goals], yLog, yLog ? null : data.y[y].from, [...all("low"), ...all("high")]) },
        axes: [axis("x", data.x[x], xLog), axis("y", data.y[y], yLog)],
        legend: { show: false },
        focus: { alpha: 0.2 },
        cursor: { points: { show: false }, drag: { x: true, y: true, uni: 20 }, bind: { dblclick: () => () => draw() } },
        hooks: {
          drawAxes: [(u) => { bands(u); target(u, goal, ink); }],
          setCursor: [(u) => { emphasise(...(u.cursor.left < 0 ? [null] : nearest(u))); }],
        },
      },
      uPlot.join(shown.map(({ at }) => [at.x, at.mean])),
      find("-plot"),
    );
  };

  const change = (buttons, on) => { buttons.forEach((button) => press(button, on(button))); draw(); };
  const line = (button) => data.lines[+button.dataset.line];
  for (const name of ["x", "y"]) {
    const log = () => { find(`-${name}-log`).checked = data[name][find(`-${name}`).value].log; };
    find(`-${name}`).addEventListener("change", () => { log(); draw(); });
    find(`-${name}-log`).addEventListener("change", draw);
    log();
  }
  for (const button of buttons) {
    button.addEventListener("click", () => change([button], () => !pressed(button)));
    button.addEventListener("focus", () => emphasise(+button.dataset.line));
    button.addEventListener("blur", () => emphasise(null));
  }
  wholes.forEach((whole) => whole.addEventListener("click", () => { const on = !pressed(whole); change(members(whole), () => on); }));
  for (const [name, on] of Object.entries({ all: () => true, none: () => false, best: (button) => line(button).front }))
    find(`-${name}`).addEventListener("click", () => change(buttons, on));
  find("-find").addEventListener("input", () => {
    const part = find("-find").value.trim().toLowerCase();
    buttons.forEach((button) => { button.hidden = !line(button).label.toLowerCase().includes(part); });
    wholes.forEach((whole) => { whole.hidden = !members(whole).length; });
    draw();
  });
  find("-bands").checked = buttons.length <= 8;
  for (const each of [find("-bands"), dark]) each.addEventListener("change", draw);
  find("").hidden = false;
  draw();
  new ResizeObserver(() => plot?.setSize(size())).observe(find("-plot"));
})();
