// The estimated distribution function with its band, the asked quantiles and the asked ranges.

  const { curve, quantiles, ranges } = data;
  const { column } = data;
  const method = get("parameters.method");
  const [interactive, hierarchical] = ["interactive", "hierarchical"].map((one) => one === method);
  const NOUNS = {
    page: "page", one: "stretch of values", many: "stretches of values", article: "a stretch of values",
    level: hierarchical ? "stretches that the range is cut into" : null, levelText: (level) => whole(2 ** level), finest: "all",
    rounds: hierarchical ? "Each round counted stretches of values of one length, and looked only inside the stretches that the round before had published. What the threshold held back is spread over the stretches that are missing."
      : interactive ? "Each round asked about parts of the range that earlier answers had left open." : "",
  };
  const everything = [...curve.value, ...quantiles.flatMap((one) => [one.low, one.high]), ...ranges.flatMap((one) => [one.low, one.high])];
  const extent = everything.length ? [Math.min(...everything), Math.max(...everything)] : [0, 1];
  if (extent[0] === extent[1]) extent.splice(0, 2, extent[0] - 0.5, extent[0] + 0.5);
  const [first, last] = extent;
  const digits = clamp(Math.ceil(-Math.log10((last - first) / 2000)), 0, 12);
  const fixed = (value, places) => minus(value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places })).replace(/^\u2212(?=[0.]*$)/, "");
  /** Writes the numbers of a column with equally many decimals: as many as one of them needs, up to `digits`. */
  const columnOf = (values) => {
    const enough = (places) => values.every((value) => Number(value.toFixed(places)) === Number(value.toFixed(digits)));
    let places = 0;
    while (places < digits && !enough(places)) places++;
    return (value) => fixed(value, places);
  };
  const number = (value) => fixed(value, digits);
  const exactly = (share) => `${significant(100 * share, 4)}%`;
  const inQuantiles = columnOf(quantiles.flatMap((one) => [one.value, one.low, one.high]));
  const inRanges = columnOf(ranges.flatMap((one) => [one.low, one.high]));

  /** Share of the users below a value and its band, by straight lines between the curve's points. */
  function lookup(value) {
    const at = curve.value.findIndex((one) => one >= value);
    if (!curve.value.length) return null;
    const pick = (i) => ({ share: curve.share[i], low: curve.low[i], high: curve.high[i] });
    if (at <= 0) return at === 0 && curve.value[0] === value ? pick(0) : at === 0 ? null : pick(curve.value.length - 1);
    const [a, b] = [pick(at - 1), pick(at)];
    const t = (value - curve.value[at - 1]) / (curve.value[at] - curve.value[at - 1] || 1);
    return { share: a.share + t * (b.share - a.share), low: a.low + t * (b.low - a.low), high: a.high + t * (b.high - a.high) };
  }

  // ---------------------------------------------------------------- the chart

  const chart = $("chart");
  const state = { value: null, range: -1, quantile: -1 };
  let frame = null; // where the axes lie, in pixels
  const line = (name, x1, y1, x2, y2) => svg("line", { class: name, x1, y1, x2, y2 });
  const text = (name, x, y, words, anchor = "start") => svg("text", { class: name, x, y, "text-anchor": anchor }, words);
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

  function axes({ x, y, left, right, top, bottom, wide }) {
    const parts = [];
    for (let share = 0; share <= 100; share += wide ? 10 : 25) {
      parts.push(line(share ? "rule" : "base", left, y(share / 100), right, y(share / 100)));
      if (share % 20 === 0 || !wide) parts.push(text("tick", left - 9, y(share / 100) + 4, `${share}%`, "end"));
    }
    const stepSize = niceStep((last - first) / Math.max((right - left) / 105, 2));
    const places = clamp(Math.ceil(-Math.log10(stepSize) - 1e-9), 0, 12);
    for (let n = Math.ceil(first / stepSize - 1e-9); n * stepSize <= last + stepSize * 1e-9; n++) {
      const [at, words] = [x(n * stepSize), fixed(n * stepSize, places)];
      const edge = right + (wide ? 38 : 16); // a number that would run over it ends there
      const over = at + words.length * 3.8 > edge;
      parts.push(line("rule", at, top, at, bottom), text("tick", over ? edge : at, bottom + 19, words, over ? "end" : "middle"));
    }
    const name = column.length > 60 ? `${column.slice(0, 59)}\u2026` : column;
    return [...parts, text("title", left, top - 14, "Share of users below"), text("title", right, bottom + 40, name, "end")];
  }
  /** An asked quantile: lines to both axes, its range, and, where there is room, its words. */
  function mark(one, i, { x, y, left, right, bottom }, taken) {
    const [px, py] = [x(one.value), y(one.share)];
    const words = `${exactly(one.share)}: ${inQuantiles(one.value)}`;
    const room = words.length * 7.4 + 14;
    const fits = px + room < right && taken.every(([tx, ty]) => Math.abs(ty - py) > 19 || px > tx + room || px + room < tx);
    if (fits) taken.push([px, py]);
    return svg("g", { class: `mark${state.quantile === i ? " chosen" : ""}` }, line("lead", left, py, px, py), line("lead", px, py, px, bottom),
      line("whisker", x(one.low), py, x(one.high), py), line("whisker", x(one.low), py - 5, x(one.low), py + 5), line("whisker", x(one.high), py - 5, x(one.high), py + 5),
      svg("circle", { class: "dot", cx: px, cy: py, r: 5 }), fits && text("words", Math.max(px, x(one.high)) + 11, py + 16, words));
  }
  function draw() {
    const box = chart.getBoundingClientRect();
    const [w, tall] = [Math.max(box.width, 200), Math.max(box.height, 200)];
    const wide = w > 600;
    const f = { left: wide ? 74 : 52, right: w - (wide ? 40 : 18), top: wide ? 56 : 44, bottom: tall - (wide ? 66 : 58), wide };
    f.x = (value) => f.left + ((value - first) / (last - first)) * (f.right - f.left);
    f.y = (share) => f.bottom - clamp(share, 0, 1) * (f.bottom - f.top);
    frame = f;
    const along = (shares) => curve.value.map((value, i) => [f.x(value), f.y(shares[i])]);
    const chosen = ranges[state.range];
    const taken = [];
    const now = state.value === null ? null : lookup(state.value);
    const drawing = svg("svg", { width: w, height: tall, viewBox: `0 0 ${w} ${tall}`, "aria-hidden": "true" },
      svg("defs", {}, svg("linearGradient", { id: "warmth", gradientUnits: "userSpaceOnUse", x1: 0, y1: f.bottom, x2: 0, y2: f.top },
        [["0", "#8a226a"], ["0.35", "#bc3754"], ["0.7", "#f1731d"], ["1", "#fbbc21"]].map(([offset, colour]) => svg("stop", { offset, "stop-color": colour })))),
      axes(f),
      chosen && svg("rect", { class: "chosen-range", x: f.x(chosen.low), y: f.top, width: f.x(chosen.high) - f.x(chosen.low), height: f.bottom - f.top }),
      curve.value.length > 1 && [
        svg("path", { class: "band", d: `${path([...along(curve.high), ...along(curve.low).reverse()])}Z` }),
        svg("path", { class: "curve", d: path(along(curve.share)) })],
      (interactive || curve.value.length < 60) && along(curve.share).map(([cx, cy]) => svg("circle", { class: "point", cx, cy, r: 2.4 })),
      quantiles.map((one, i) => mark(one, i, f, taken)),
      now && [line("cross", f.x(state.value), f.top, f.x(state.value), f.bottom), line("whisker", f.x(state.value), f.y(now.low), f.x(state.value), f.y(now.high)), svg("circle", { class: "here", cx: f.x(state.value), cy: f.y(now.share), r: 4.5 })],
    );
    $("plot").replaceChildren(drawing);
    showTip(now, w, tall);
  }

  // ---------------------------------------------------------------- the value under the pointer

  const finely = (share) => `${fixed(100 * clamp(share, 0, 1), 2)}%`;
  const sharesWords = (now) => (now ? `about ${finely(now.share)} of users` : "not estimated here");
  const rangeWords = (now) => (now ? `between ${finely(now.low)} and ${finely(now.high)} at 95%` : "outside the curve");
  function showTip(now, w, tall) {
    const tip = $("tip");
    tip.hidden = state.value === null;
    if (tip.hidden) return;
    tip.replaceChildren(h("p", { class: "value" }, sharesWords(now)), h("p", { class: "margin" }, `below ${number(state.value)}`), h("p", { class: "margin" }, rangeWords(now)));
    const [px, py] = [frame.x(state.value), frame.y(now ? now.share : 0.5)];
    tip.style.transform = `translate(${tipAt(px, tip.offsetWidth, w)}px,${Math.round(clamp(py + 22, 6, tall - tip.offsetHeight - 6))}px)`;
  }
  function setValue(value) {
    state.value = isNumber(value) ? clamp(value, first, last) : null;
    if (state.value !== null) {
      const now = lookup(state.value);
      chart.setAttribute("aria-valuenow", String(state.value));
      chart.setAttribute("aria-valuetext", `${number(state.value)}: ${sharesWords(now)} below, ${rangeWords(now)}`);
    }
    draw();
  }
  chart.setAttribute("aria-valuemin", String(first));
  chart.setAttribute("aria-valuemax", String(last));
  const under = (event) => {
    const share = (event.clientX - chart.getBoundingClientRect().left - frame.left) / (frame.right - frame.left);
    return share < -0.02 || share > 1.02 ? null : first + clamp(share, 0, 1) * (last - first);
  };
  chart.addEventListener("pointermove", (event) => setValue(under(event)));
  chart.addEventListener("pointerdown", (event) => setValue(under(event)));
  chart.addEventListener("pointerleave", () => setValue(null));
  chart.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
    const end = { Home: first, End: last }[event.key];
    if ((steps === undefined && end === undefined && event.key !== "Escape") || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (event.key === "Escape") setValue(null);
    else setValue(end ?? (state.value ?? (first + last) / 2) + (steps * (last - first)) / 200);
  });
  chart.addEventListener("blur", () => setValue(null));

  // ---------------------------------------------------------------- the panel

  /** A list of buttons, each of which marks its answer on the chart until it is pressed again. */
  function answers(id, key, rows) {
    $(id).hidden = rows.length === 0;
    const buttons = rows.map((row, i) => {
      const button = h("button", { type: "button", "aria-pressed": "false" }, row);
      button.addEventListener("click", () => {
        state[key] = state[key] === i ? -1 : i;
        buttons.forEach((one, at) => one.setAttribute("aria-pressed", String(at === state[key])));
        draw();
      });
      return button;
    });
    $(id).querySelector("ol").append(...buttons.map((button) => h("li", null, button)));
  }
  answers("quantiles", "quantile", quantiles.map((one) => [h("span", null, exactly(one.share)), h("b", null, inQuantiles(one.value)), h("span", { class: "number" }, `${inQuantiles(one.low)} to ${inQuantiles(one.high)}`)]));
  answers("ranges", "range", ranges.map((one) => [h("span", null, `${inRanges(one.low)} to ${inRanges(one.high)}`), h("b", null, whole(one.users)), h("span", { class: "number" }, `\u00b1 ${whole(Z * one.stddev)}`)]));

  // ---------------------------------------------------------------- begin

  // The band of a search steps at its dots, so a dot's value stands in the curve twice, and both bands hold there. At the
  // ends of the range nothing is estimated.
  const dots = new Map();
  curve.value.forEach((value, i) => {
    const { low, high } = dots.get(value) ?? { low: 0, high: 1 };
    if (!interactive || (value > curve.value[0] && value < curve.value[curve.value.length - 1])) dots.set(value, { share: curve.share[i], low: Math.max(low, curve.low[i]), high: Math.min(high, curve.high[i]) });
  });
  const widest = dots.size ? [...dots.values()].reduce((most, { share, low, high }) => Math.max(most, high - share, share - low), 0) : null;
  const margin = widest === null ? "" : `\u00b1 ${rounded(ceiling(100 * widest, 2), 2)} percentage points`;
  const drawn = rounds.length ? drawWords(rounds[0]) : "";
  $("step").textContent = [
    rounds.length === 1 ? drawn : draws.length === 1 ? `In each of ${plural(rounds.length, "round")}: ${drawn.charAt(0).toLowerCase()}${drawn.slice(1)}` : "",
    widest === null ? "" : interactive ? `At the dots the curve is known to ${margin}; between them it may run anywhere between its neighbours.` : `The curve is known to ${margin}.`,
  ].join(" ").trim();
  showHeader(headline(), [budgetChip(), ["Column", column.length > 40 ? `${column.slice(0, 39)}\u2026` : column], ["Range", [first, last].map(columnOf([first, last])).join(" to ")]]);
  showPledge();
  const asked = [
    quantiles.length ? section("The quantiles", tableOf("Table of quantiles", ["Share of users", "Lie below", "At 95%, between", "and"], quantiles.map((one) => [exactly(one.share), inQuantiles(one.value), inQuantiles(one.low), inQuantiles(one.high)]))) : null,
    ranges.length ? section("The ranges", tableOf("Table of ranges", ["From", "To below", "Users", "\u00b1 at 95%", "Std. dev."], ranges.map((one) => [inRanges(one.low), inRanges(one.high), whole(one.users), whole(Z * one.stddev), whole(one.stddev)]))) : null,
  ].filter(Boolean);
  showSampleReport([
    paragraph("The curve says what share of the users lie below a value. Where it is steep there are many users; where it is flat there are few or none."),
    paragraph("The band shows what the draw alone leaves open: it holds the true curve at a value about 95 times in 100. A quantile's range is read off in the same way."),
    interactive && paragraph("The curve is known at the dots only, the values that were asked about. Between two dots it may run anywhere between their heights; the straight line is no more than a guess."),
    ranges.length > 0 && paragraph("A range from LOW to HIGH counts the users with LOW \u2264 value < HIGH, so ranges that meet share nobody."),
    isNumber(hiddenCount) && paragraph(`A stretch of values that too few of the drawn users share is not seen on its own. It has at most ${whole(hiddenCount)} users, with 99% confidence, so the curve can run a little low or high beside rare values.`),
    paragraph("Values outside the range that was asked about count as its nearest end."),
  ], {}, asked);
  draw();
  new ResizeObserver(draw).observe(chart);
  window.sfumato = { curve, quantiles, ranges, lookup, setValue, get state() { return { ...state }; } };
