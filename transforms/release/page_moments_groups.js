// The table of groups, or of a map's cells: each with its interval as a bar, sorted by any column.

  /** Fills the table, and answers to its heads, its filter and the choice of a statistic. */
  function groupTable(noun) {
    const WINDOW = noun === "cell" ? 20 : 60; // rows at first; every further click doubles them
    const chosen = { set: 0, by: "", down: true, filter: "", shown: WINDOW };
    const alphabet = new Intl.Collator("en", { numeric: true });
    const placed = (element, left, extent = null) => {
      element.style.left = `${100 * left}%`;
      if (extent !== null) element.style.width = `${100 * extent}%`;
      return element;
    };
    const rowsOf = () => {
      const set = data.groups[chosen.set];
      const text = chosen.filter.toLowerCase();
      const rows = set.name.map((_, i) => i).filter((i) => set.name[i].toLowerCase().includes(text));
      const sizes = chosen.by && set[chosen.by];
      const order = { "": () => 0, name: (a, b) => alphabet.compare(set.name[b], set.name[a]) }[chosen.by] ?? ((a, b) => (sizes[b] ?? -Infinity) - (sizes[a] ?? -Infinity));
      const sorted = rows.sort((a, b) => order(a, b) || a - b);
      return chosen.down ? sorted : sorted.reverse();
    };
    /** Where values stand on the axis, in 0..1, and its round numbers. An interval known poorly does not set the scale. */
    function scaleFor(set) {
      const known = set.value.map((value, i) => [value, set.low[i], set.high[i]]).filter(([value]) => isNumber(value));
      if (!known.length) return { at: () => 0, ticks: [] };
      const [least, most] = known.reduce(([a, b], [value]) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
      const reach = 1.5 * (most - least) || Infinity;
      let [low, high] = known.reduce(([a, b], [, from, to]) => [Math.min(a, isNumber(from) ? Math.max(from, least - reach) : a), Math.max(b, isNumber(to) ? Math.min(to, most + reach) : b)], [least, most]);
      if (!(high > low)) [low, high] = [low - (Math.abs(low) * 0.05 || 1), high + (Math.abs(high) * 0.05 || 1)];
      const spare = 0.02 * (high - low);
      [low, high] = [low - spare, high + spare];
      const step = niceStep((high - low) / 5);
      const ticks = [];
      for (let n = Math.ceil(low / step); n * step <= high; n++) ticks.push(Number((n * step).toPrecision(12)));
      return { at: (value) => clamp((value - low) / (high - low), 0, 1), ticks };
    }
    const tickWords = (value) => (Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? minus(value.toExponential(1)) : significant(value, 6));
    function rowOf(set, i, rank, { at: on, ticks }) {
      const [value, low, high] = [set.value[i], set.low[i], set.high[i]];
      const [from, to] = [isNumber(low) ? on(low) : 0, isNumber(high) ? on(high) : 1];
      return h("tr", { role: "row" },
        h("td", { role: "cell", class: "rank" }, whole(rank)),
        h("th", { scope: "row", role: "rowheader", class: "name" }, h("div", { class: "label" }, h("bdi", { title: set.name[i] }, set.name[i] || h("em", null, "(empty)")))),
        h("td", { role: "cell", class: "bar" }, h("div", { class: "plot", "aria-hidden": "true" },
          ticks.map((tick) => placed(h("i", { class: "rule" }), on(tick))),
          isNumber(set.everybody) && placed(h("i", { class: "overall" }), on(set.everybody)),
          isNumber(value) && placed(h("i", { class: "range" }), from, to - from),
          isNumber(value) && placed(h("i", { class: "dot" }), on(value)))),
        h("td", { role: "cell", class: "users" }, set.text[i], " ", h("small", null, set.range[i])),
        h("td", { role: "cell", class: "share" }, whole(set.clients[i])));
    }
    function showRows() {
      const set = data.groups[chosen.set];
      const rows = rowsOf();
      const scale = scaleFor(set);
      $("list").replaceChildren(...rows.slice(0, chosen.shown).map((i, at) => rowOf(set, i, at + 1, scale)));
      $("axis").replaceChildren(...scale.ticks.map((tick) => placed(h("span", null, tickWords(tick)), scale.at(tick))));
      for (const by of ["name", "value", "clients"]) $(`by-${by}`).setAttribute("aria-sort", chosen.by !== by ? "none" : chosen.down ? "descending" : "ascending");
      $("status").textContent = chosen.filter ? `${whole(rows.length)} of ${plural(set.name.length, noun)} match` : plural(set.name.length, noun);
      $("nothing").hidden = rows.length > 0;
      $("next").hidden = rows.length <= chosen.shown;
    }
    function restart(change) {
      Object.assign(chosen, { shown: WINDOW }, change);
      showRows();
    }
    const sortBy = (by) => restart({ down: chosen.by === by ? !chosen.down : true, by });
    /** Names begin at a; sizes begin with the largest. */
    const sortFrom = (by) => (chosen.by === by || by !== "name" ? sortBy(by) : restart({ by, down: false }));
    function setStatistic(next) {
      restart({ set: clamp(Math.round(next) || 0, 0, data.groups.length - 1) });
      const set = data.groups[chosen.set];
      $("groups-title").textContent = `${set.title} by ${noun}`;
      for (const button of $("group-statistics").children) button.setAttribute("aria-pressed", String(Number(button.dataset.set) === chosen.set));
    }
    for (const by of ["name", "value", "clients"]) $(`by-${by}`).querySelector("button").addEventListener("click", () => sortFrom(by));
    $("filter").addEventListener("input", () => restart({ filter: $("filter").value }));
    $("filter").hidden = data.groups[0].name.length < 12;
    $("next").addEventListener("click", () => {
      const before = $("list").children.length;
      chosen.shown *= 2;
      showRows();
      const row = $("list").children[before]?.querySelector("th");
      row?.setAttribute("tabindex", "-1");
      row?.focus({ preventScroll: true }); // reading goes on where it was
    });
    $("group-statistics").hidden = data.groups.length < 2;
    $("group-statistics").append(...data.groups.map((set, i) => {
      const button = h("button", { type: "button" }, set.title);
      button.dataset.set = i;
      button.addEventListener("click", () => setStatistic(i));
      return button;
    }));
    $("groups").hidden = false;
    $("groups").setAttribute("aria-label", `By ${noun}`);
    setStatistic(0);
    return { sortBy: sortFrom, setStatistic, get sorted() { return { by: chosen.by, down: chosen.down }; } };
  }
