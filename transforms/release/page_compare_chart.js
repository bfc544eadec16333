// Error curves: a metric against an option, one line a method at the chosen values of all other options.

  const chart = $("chart");
  const numeric = varied.filter((name) => choices[name].every((one) => isNumber(one.value)) && choices[name].length > 1);
  const curves = { metric: metrics[0], along: numeric.sort((a, b) => choices[b].length - choices[a].length)[0] ?? varied[0], hidden: new Set(), hover: null };
  let axes = null; // where they lie, in pixels

  /** Plain for sizes that people write out, else with a power of ten. */
  function amount(value) {
    if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)) return significant(value, 3);
    const [mantissa, power] = value.toExponential(1).split("e");
    return `${Number(mantissa) === 1 ? "" : `${minus(String(Number(mantissa)))} \u00d7 `}10${raised(power)}`;
  }
  /** A scale from values to pixels with its ticks: logarithmic where positive values span more than a decade. */
  function scaleOf(values, from, to, room) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const log = low > 0 && high / low > 10;
    const move = log ? Math.log10 : (value) => value;
    let [a, b] = [move(low), move(high)];
    if (a === b) [a, b] = [a - (Math.abs(a) || 1) / 2, b + (Math.abs(b) || 1) / 2];
    const place = (value) => from + ((move(value) - a) / (b - a)) * (to - from);
    const ticks = [];
    if (log) {
      const many = Math.ceil((b - a) / Math.max(Math.abs(to - from) / room, 2)); // decades between ticks
      const parts = b - a < 1.7 ? [1, 2, 5] : b - a < 3 ? [1, 3] : [1];
      for (let power = Math.floor(a); power <= b; power++) {
        for (const part of parts) {
          const at = power + Math.log10(part);
          if ((parts.length > 1 || power % many === 0) && at >= a - 1e-9 && at <= b + 1e-9) ticks.push(Number(`${part}e${power}`));
        }
      }
    } else {
      const step = niceStep((b - a) / Math.max(Math.abs(to - from) / room, 2));
      for (let n = Math.ceil(a / step - 1e-9); n * step <= b + step * 1e-9; n++) ticks.push(Number((n * step).toPrecision(12)));
    }
    return { place, ticks, log, low: log ? 10 ** a : a };
  }

  /** The lines: {method, flat, points: [{at, mean, error, text}]}; flat where the method does not have the option. */
  function lines() {
    const { metric, along } = curves;
    return methods.map((method) => {
      const mine = rows.filter((row) => row.method === method && fits(row, along));
      const points = mine.map((row) => ({ at: row.options[along], mean: row.metrics[metric.name][0], error: row.metrics[metric.name][1], text: row.metrics[metric.name][2] }))
        .filter((one) => one.mean !== null).sort((a, b) => a.at - b.at);
      return { method, flat: mine.length > 0 && !(along in mine[0].options), points };
    });
  }

  function drawChart() {
    if ($("curves").hidden) return;
    const box = chart.getBoundingClientRect();
    if (!box.width) return;
    const wide = box.width > 600;
    const f = { left: wide ? 92 : 66, right: box.width - (wide ? 40 : 20), top: 46, bottom: box.height - 62 };
    const all = lines();
    const shown = all.filter((one) => one.points.length && !curves.hidden.has(one.method));
    const xs = choices[curves.along].map((one) => one.value);
    const numbers = xs.every(isNumber);
    const scale = numbers ? scaleOf(xs, f.left + 14, f.right - 14, 80) : null;
    const x = (value) => (numbers ? scale.place(value) : f.left + ((xs.indexOf(value) + 0.5) / xs.length) * (f.right - f.left));
    const means = shown.flatMap((one) => one.points.map((each) => each.mean));
    const positive = means.length > 0 && Math.min(...means) > 0;
    const ends = shown.flatMap((one) => one.points.flatMap((each) => [each.mean - (each.error ?? 0), each.mean + (each.error ?? 0)])).filter((end) => !positive || end > 0);
    const y = scaleOf(means.length ? [...means, ...ends] : [0, 1], f.bottom - 14, f.top, 56);
    const within = (value) => clamp(y.log && value <= 0 ? f.bottom : y.place(value), f.top - 6, f.bottom + 6);
    axes = { x, xs, ...f };
    const drawn = shown.map(({ method, flat, points }) => {
      const along = flat ? [[f.left, within(points[0].mean)], [f.right, within(points[0].mean)]] : points.map((one) => [x(one.at), within(one.mean)]);
      return svg("g", { class: looks(method), "data-method": method },
        svg("path", { class: "curve", d: along.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(2)} ${py.toFixed(2)}`).join("") }),
        !flat && points.map((one) => [
          one.error > 0 && svg("path", { class: "whisker", d: (([px, low, high]) => `M${px} ${low}V${high}M${px - 4} ${low}h8M${px - 4} ${high}h8`)([x(one.at), within(one.mean - one.error), within(one.mean + one.error)]) }),
          point(method, x(one.at), within(one.mean))]));
    });
    // The values themselves are the ticks where there is room for them.
    let last = -Infinity;
    const named = choices[curves.along].filter((one) => x(one.value) - last > 14 + 7.4 * one.text.length && ((last = x(one.value)), true));
    const at = (value, name) => svg("line", { class: name, x1: x(value), y1: f.top - 10, x2: x(value), y2: f.bottom });
    const better = curves.metric.better === "lower" ? "lower is better" : "higher is better";
    $("plot").replaceChildren(svg("svg", { width: box.width, height: box.height, viewBox: `0 0 ${box.width} ${box.height}`, "aria-hidden": "true" },
      y.ticks.map((tick) => [svg("line", { class: "rule", x1: f.left, y1: y.place(tick), x2: f.right, y2: y.place(tick) }), svg("text", { x: f.left - 10, y: y.place(tick) + 4, "text-anchor": "end" }, amount(tick))]),
      svg("line", { class: "base", x1: f.left, y1: f.bottom, x2: f.right, y2: f.bottom }),
      xs.includes(chosen[curves.along]) && at(chosen[curves.along], "here"),
      curves.hover !== null && at(curves.hover, "cross"),
      named.map((one) => [svg("line", { class: "base", x1: x(one.value), y1: f.bottom, x2: x(one.value), y2: f.bottom + 5 }), svg("text", { x: x(one.value), y: f.bottom + 21, "text-anchor": "middle" }, one.text)]),
      svg("text", { class: "title", x: f.left, y: f.top - 22 }, `${curves.metric.name}, ${better}${y.log ? ", logarithmic" : ""}`),
      svg("text", { class: "title", x: f.right, y: f.bottom + 44, "text-anchor": "end" }, `${curves.along}${scale?.log ? ", logarithmic" : ""}`),
      drawn));
    const others = varied.filter((name) => name !== curves.along);
    $("at").textContent = others.length ? `at ${others.map((name) => `${name} ${choices[name].find((one) => one.value === chosen[name])?.text ?? ""}`).join(", ")}` : "";
    const place = Math.max(xs.indexOf(chosen[curves.along]), 0);
    chart.setAttribute("aria-valuemax", String(xs.length - 1));
    chart.setAttribute("aria-valuenow", String(place));
    chart.setAttribute("aria-valuetext", `${curves.along} ${choices[curves.along][place].text}: ${ranked(shown, xs[place]).map(([method, one]) => `${method} ${one.text}`).join("; ")}`);
    for (const button of $("series").querySelectorAll("button")) {
      const { method } = button.dataset;
      button.setAttribute("aria-pressed", String(!curves.hidden.has(method)));
      button.disabled = !all.find((one) => one.method === method).points.length;
    }
    showTip(shown, box);
  }

  /** [method, point] of every line that has a point at a value, the best first. */
  function ranked(shown, value) {
    const found = shown.map(({ method, flat, points }) => [method, flat ? points[0] : points.find((one) => one.at === value)]).filter(([, one]) => one);
    return found.sort(([, a], [, b]) => (curves.metric.better === "lower" ? a.mean - b.mean : b.mean - a.mean));
  }
  function showTip(shown, box) {
    const tip = $("tip");
    tip.hidden = curves.hover === null;
    if (tip.hidden) return;
    const name = choices[curves.along].find((one) => one.value === curves.hover).text;
    tip.replaceChildren(h("p", { class: "value" }, `${curves.along} ${name}`), h("ul", null, ranked(shown, curves.hover).map(([method, one]) => h("li", null, swatchOf(method), h("span", null, method), h("b", null, one.text)))));
    const px = axes.x(curves.hover);
    tip.style.transform = `translate(${tipAt(px, tip.offsetWidth, box.width)}px,${Math.round(axes.top)}px)`;
  }

  function buildChart() {
    $("curves").hidden = varied.length === 0;
    if ($("curves").hidden) return;
    $("figure").append(...metrics.map((metric, i) => h("option", { value: i }, metric.name)));
    $("along").append(...varied.map((name) => h("option", { value: name }, name)));
    $("along").value = curves.along;
    $("figure").addEventListener("change", () => { curves.metric = metrics[Number($("figure").value)]; drawChart(); });
    $("along").addEventListener("change", () => { curves.along = $("along").value; curves.hover = null; drawChart(); });
    $("series").append(...methods.map((method) => {
      const button = h("button", { type: "button", "aria-pressed": "true", "data-method": method }, swatchOf(method), h("span", null, method));
      button.addEventListener("click", () => {
        if (!curves.hidden.delete(method)) curves.hidden.add(method);
        drawChart();
      });
      return h("li", null, button);
    }));
    const nearest = (event) => {
      const px = event.clientX - chart.getBoundingClientRect().left;
      return axes.xs.reduce((best, value) => (Math.abs(axes.x(value) - px) < Math.abs(axes.x(best) - px) ? value : best));
    };
    const hover = (value) => {
      if (curves.hover === value) return;
      curves.hover = value;
      drawChart();
    };
    chart.addEventListener("pointermove", (event) => hover(nearest(event)));
    chart.addEventListener("pointerleave", () => hover(null));
    chart.addEventListener("blur", () => hover(null));
    chart.addEventListener("click", (event) => choose({ [curves.along]: nearest(event) }));
    chart.addEventListener("keydown", (event) => {
      const { xs } = axes;
      const place = xs.indexOf(chosen[curves.along]);
      const next = { ArrowRight: place + 1, ArrowUp: place + 1, ArrowLeft: place - 1, ArrowDown: place - 1, Home: 0, End: xs.length - 1 }[event.key];
      if ((next === undefined && event.key !== "Escape") || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (next === undefined) return hover(null);
      curves.hover = xs[clamp(next, 0, xs.length - 1)];
      choose({ [curves.along]: curves.hover });
    });
  }

  buildChart();
  showComparison();
  look(1, 0.5, 0.5);
  choose({});
  new ResizeObserver(() => drawChart()).observe(chart);
  window.sfumato = { rows, choose, zoom, sortBy, get chosen() { return { ...chosen }; }, get view() { return { ...view }; } };
