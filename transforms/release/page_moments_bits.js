// The chart of bits: how often each is set, by place value, bits of negative values on the left.

  /** Draws the chart, and answers to pointer, keys and the choice of a quantity. */
  function bitChart() {
    const chart = $("bits");
    const sets = data.bits;
    const [floor, roof] = data.reach; // no share beyond these is drawn to scale
    const Z = 1.96; // standard deviations on each side that hold 95% of a normal law
    const shown = { set: 0, bit: -1 };
    let lines = null; // where the axes lie, in pixels
    const rule = (name, x1, y1, x2, y2) => svg("line", { class: name, x1, y1, x2, y2 });
    const label = (name, x, y, text, anchor = "middle") => svg("text", { class: name, x, y, "text-anchor": anchor }, text);
    /** From dark rose to yellow: the more a bit adds, beside the one that adds most, the brighter it is. */
    const warmth = (share) => `hsl(${(352 + 48 * share) % 360} ${68 + 24 * share}% ${50 + 5 * share}%)`;

    function measured(set, box) {
      const wide = box.width > 600;
      const n = set.mean.length;
      const ends = set.mean.flatMap((mean, i) => (isNumber(mean) && set.unclear[i] ? [mean] : isNumber(mean) ? [mean, mean - Z * (set.stddev[i] ?? 0), mean + Z * (set.stddev[i] ?? 0)] : []));
      const [low, high] = [Math.max(Math.min(0, ...ends), floor) - 0.03, Math.min(Math.max(1, ...ends), roof) + 0.03];
      const f = { left: wide ? 74 : 50, right: box.width - (wide ? 36 : 12), top: 40, bottom: box.height - 62, edge: box.width - 3, wide, low, high };
      const negative = set.weight.filter((weight) => weight < 0).length;
      const gap = negative && negative < n ? 0.8 : 0;
      f.unit = (f.right - f.left) / Math.max(n + gap, 1);
      f.x = (i) => f.left + (i + 0.5 + (i >= negative ? gap : 0)) * f.unit;
      f.y = (share) => f.bottom - ((clamp(share, low, high) - low) / (high - low)) * (f.bottom - f.top);
      return f;
    }
    function axes(set, f) {
      const parts = [svg("rect", { class: "within", x: f.left, y: f.y(1), width: f.right - f.left, height: f.y(0) - f.y(1) })];
      const step = f.wide ? 20 : 25;
      for (let share = Math.ceil((100 * f.low) / step) * step; share <= 100 * f.high; share += step) {
        parts.push(rule(share === 0 || share === 100 ? "base" : "rule", f.left, f.y(share / 100), f.right, f.y(share / 100)));
        if (f.wide || share % 50 === 0) parts.push(label("tick", f.left - 9, f.y(share / 100) + 4, minus(`${share}%`), "end"));
      }
      const longest = Math.max(...set.place.map((text) => text.length), 1);
      const every = Math.max(Math.ceil((longest * 6.4 + 5) / f.unit), 1);
      const n = set.place.length;
      set.place.forEach((text, i) => {
        if ((set.weight[i] > 0 ? n - 1 - i : i) % every !== 0) return;
        const over = f.x(i) + text.length * 3.5 > f.edge; // a number that would run over the edge ends there
        parts.push(label("tick", over ? f.edge : f.x(i), f.bottom + 19, text, over ? "end" : "middle"));
      });
      const title = `what a set bit adds to ${set.title}`;
      return [...parts, label("title", f.left, f.top - 16, "Share of clients whose bit is set", "start"), label("title", f.right, f.bottom + 43, title.length * 6.5 > f.right - f.left ? "what a set bit adds" : title, "end")];
    }
    function bar(set, i, f, most) {
      const [mean, spread] = [set.mean[i], set.stddev[i]];
      if (!isNumber(mean)) return f.unit > 14 && label("tick", f.x(i), f.y(0) - 6, "?");
      const half = Math.min(f.unit * 0.39, 34);
      const [x, top, base] = [f.x(i), f.y(Math.max(mean, 0)), f.y(Math.min(mean, 0))];
      const body = svg("rect", { class: `bit${set.squashed[i] ? " squashed" : set.unclear[i] ? " unclear" : ""}`, x: x - half, y: top, width: 2 * half, height: Math.max(base - top, 0.75) });
      if (set.unclear[i]) return body;
      if (!set.squashed[i]) body.style.fill = warmth(Math.sqrt(Math.abs(set.added[i]) / most));
      const beyond = mean < floor || mean > roof;
      return [body, isNumber(spread) && rule("whisker", x, f.y(mean - Z * spread), x, f.y(mean + Z * spread)),
        isNumber(spread) && f.unit > 9 && [-1, 1].map((sign) => mean + sign * Z * spread).filter((end) => end >= f.low && end <= f.high).map((end) => rule("whisker", x - 3.5, f.y(end), x + 3.5, f.y(end))),
        beyond && label("beyond", x, mean > 0 ? f.top - 3 : f.bottom - 4, mean > 0 ? "\u2191" : "\u2193")];
    }
    function drawBits() {
      const set = sets[shown.set];
      if (!set || !set.mean.length) {
        $("bits-plot").replaceChildren(h("p", { class: "nothing" }, "No bit was read."));
        return;
      }
      const box = chart.getBoundingClientRect();
      const f = measured(set, { width: Math.max(box.width, 200), height: Math.max(box.height, 200) });
      lines = f;
      const most = Math.max(...set.added.map(Math.abs), 1e-300);
      const chosen = shown.bit;
      $("bits-plot").replaceChildren(svg("svg", { width: box.width, height: box.height, viewBox: `0 0 ${box.width} ${box.height}`, "aria-hidden": "true" },
        axes(set, f),
        chosen >= 0 && svg("rect", { class: "chosen-bit", x: f.x(chosen) - f.unit / 2, y: f.top, width: f.unit, height: f.bottom - f.top }),
        set.mean.map((_, i) => bar(set, i, f, most))));
      showBit(set, f, box);
    }

    // -------------------------------------------------------------- the bit under the pointer

    const margin = (set, i) => Z * set.stddev[i];
    function wordsOf(set, i) {
      const [mean, spread, weight] = [set.mean[i], set.stddev[i], set.weight[i]];
      const rows = [["Place value", `${set.place[i]}${weight < 0 ? ", of negative values" : ""}`], ["Adds", set.squashed[i] ? "next to nothing" : `about ${set.adds[i]}`],
        ["Reports", `${joint ? "about " : ""}${whole(isNumber(set.reports[i]) ? Math.max(set.reports[i], 0) : null)}`], ["Read", isNumber(set.read_probability[i]) ? `of a client with a chance of ${about(set.read_probability[i])}` : "unknown"]];
      if (!isNumber(mean)) return { value: "not known", margin: set.reports[i] > 0 ? "" : "nobody was asked about it", rows };
      if (set.unclear[i]) return { value: "not known", margin: "asked about too rarely to tell", rows };
      if (set.squashed[i]) {
        const times = spread > 0 ? mean / spread : 0;
        rows.push(["Squashed", mean <= 0 ? "probably empty: its share is not above 0%" : `probably empty: its share is ${significant(times, 2)} times its noise (std. dev.)`]);
      }
      return {
        value: `${shareWords(mean, margin(set, i))} set`, rows,
        margin: isNumber(spread) ? `from ${shareWords(mean - margin(set, i), margin(set, i))} to ${shareWords(mean + margin(set, i), margin(set, i))} at 95%` : "of unknown accuracy",
      };
    }
    function showBit(set, f, box) {
      const note = $("bits-tip");
      note.hidden = shown.bit < 0;
      if (note.hidden) return;
      fillTip(note, wordsOf(set, shown.bit));
      note.style.transform = `translate(${tipAt(f.x(shown.bit), note.offsetWidth, box.width, f.unit / 2 + 10)}px,${Math.round(clamp(f.top + 6, 6, Math.max(box.height - note.offsetHeight - 6, 6)))}px)`;
    }
    function setBit(bit) {
      const set = sets[shown.set];
      shown.bit = set && bit >= 0 && set.mean.length ? Math.min(bit, set.mean.length - 1) : -1;
      if (shown.bit >= 0) {
        const words = wordsOf(set, shown.bit);
        chart.setAttribute("aria-valuenow", String(shown.bit));
        chart.setAttribute("aria-valuetext", [words.value, words.margin, ...words.rows.map((row) => row.join(": "))].filter(Boolean).join(". "));
      }
      drawBits();
    }
    function under(event) {
      const set = sets[shown.set];
      if (!lines || !set) return -1;
      const x = event.clientX - chart.getBoundingClientRect().left;
      if (x < lines.left - 4 || x > lines.right + 4) return -1;
      const apart = set.mean.map((_, i) => Math.abs(lines.x(i) - x));
      return apart.indexOf(Math.min(...apart));
    }
    chart.addEventListener("pointermove", (event) => setBit(under(event)));
    chart.addEventListener("pointerdown", (event) => setBit(under(event)));
    chart.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && setBit(-1));
    chart.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      const end = { Home: 0, End: Infinity }[event.key];
      if ((steps === undefined && end === undefined && event.key !== "Escape") || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (event.key === "Escape") setBit(-1);
      else setBit(end ?? (shown.bit < 0 ? 0 : Math.max(shown.bit + steps, 0)));
    });
    chart.addEventListener("blur", () => setBit(-1));

    // -------------------------------------------------------------- the choice of a quantity

    function setQuantity(next) {
      shown.set = clamp(Math.round(next) || 0, 0, Math.max(sets.length - 1, 0));
      const set = sets[shown.set];
      const kept = set ? set.squashed.filter((one) => !one).length : 0;
      chart.setAttribute("aria-valuemax", String(Math.max((set?.mean.length ?? 1) - 1, 0)));
      for (const button of $("quantities").children) button.setAttribute("aria-pressed", String(Number(button.dataset.set) === shown.set));
      $("step").parentElement.hidden = !set;
      $("squashed-key").hidden = !set || kept === set.squashed.length;
      $("unclear-key").hidden = !set?.unclear.some(Boolean);
      $("step").textContent = set ? `${kept === set.squashed.length ? `All ${whole(kept)} bits` : `${whole(kept)} of ${whole(set.squashed.length)} bits`} make up ${set.title}. Bars are shares of clients, whiskers \u00b1 at 95%.${set.mean.some((mean) => isNumber(mean) && (mean < 0 || mean > 1)) ? " Shares outside 0% to 100% are noise." : ""}` : "";
      setBit(-1);
    }
    $("quantities").hidden = sets.length < 2;
    $("quantities").append(...sets.map((set, i) => {
      const button = h("button", { type: "button", title: `Bits of ${set.title}` }, set.short);
      button.dataset.set = i;
      button.addEventListener("click", () => setQuantity(i));
      return button;
    }));
    setQuantity(0);
    new ResizeObserver(drawBits).observe(chart);
    return { setBit, setQuantity, get bit() { return shown.bit; } };
  }
