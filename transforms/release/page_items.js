// Items as a ranked list of bars, and prefixes as a tree of such lists.

  const items = data.items;
  const total = items.name.length;
  // Prefix lengths, short to long; 0 is a whole item, the longest.
  const levels = [...new Set(items.level)].sort((a, b) => (a || Infinity) - (b || Infinity));
  const finest = levels.length ? levels[levels.length - 1] : 0;
  const asked = rounds.map((round) => round.level || 0);
  const deepest = Math.max(finest, ...asked); // of the last round, which may have published nothing
  const last = finest === 0 || asked.includes(0) ? 0 : deepest;
  const NOUNS = {
    page: "list", one: "item", many: "items", article: "an item",
    finest: "whole",
    whose: rounds.length > 1 ? "who hold what the first level shows" : "who hold what is shown",
    level: levels.some((level) => level) || rounds.some((round) => round.level) ? "prefix length" : null,
    rounds: "A round looked only inside the prefixes that the round before had published.",
  };
  const counted = (n, level) => (level === last ? plural(n, "item") : plural(n, "prefix", "prefixes"));
  const many = (level) => (level === last ? "items" : "prefixes");
  const WINDOW = 100; // rows at first; every further click doubles them

  const usersOf = new Map(levels.map((level) => [level, 0])); // estimated users of all rows of a level
  const sizeOf = new Map(levels.map((level) => [level, 0]));
  const childrenOf = new Map();
  for (let i = 0; i < total; i++) {
    usersOf.set(items.level[i], usersOf.get(items.level[i]) + items.count[i]);
    sizeOf.set(items.level[i], sizeOf.get(items.level[i]) + 1);
    if (items.parent[i] < 0) continue;
    if (!childrenOf.has(items.parent[i])) childrenOf.set(items.parent[i], []);
    childrenOf.get(items.parent[i]).push(i);
  }
  const margin = (i) => Z * items.stddev[i];

  const state = { level: finest, by: "count", down: true, filter: "", log: false, shown: WINDOW, toggled: new Set() };

  // ---------------------------------------------------------------- order and choice of rows

  const alphabet = new Intl.Collator("en", { numeric: true });
  const sorted = {
    count: (a, b) => items.count[b] - items.count[a] || a - b,
    name: (a, b) => alphabet.compare(items.name[a], items.name[b]) || a - b,
  };
  const cache = new Map();
  const cached = (name, make) => cache.get(name) || cache.set(name, make()).get(name);
  /** Rows of a level in the natural order of a column: large counts first, names from a to z. */
  const ordered = (level, by) => cached(`${level} ${by}`, () => Array.from({ length: total }, (_, i) => i).filter((i) => items.level[i] === level).sort(sorted[by]));
  const rankOf = (level) => cached(`rank ${level}`, () => new Map(ordered(level, "count").map((i, at) => [i, at + 1])));
  const natural = () => (state.by === "count" ? state.down : !state.down);
  const inOrder = (list) => (natural() ? list : [...list].reverse());

  /** 1: the row's own name holds the filter's text; 2: only a row inside it does; 0: neither. */
  function findings() {
    const text = state.filter.toLowerCase();
    if (!text) return null;
    return cached(`find ${text}`, () => {
      const lower = cached("lower", () => items.name.map((name) => name.toLowerCase()));
      const found = Uint8Array.from(lower, (name) => (name.includes(text) ? 1 : 0));
      // Long to short, so that a find travels all the way up.
      for (const level of [...levels].reverse()) for (const i of ordered(level, "count")) if (found[i] && items.parent[i] >= 0 && !found[items.parent[i]]) found[items.parent[i]] = 2;
      return found;
    });
  }
  const isOpen = (i, found) => Boolean(found && found[i] === 2) !== state.toggled.has(i);

  /** The rows to show, as [row, depth in the tree], at most `most`; and how many rows of the level match. */
  function choose(most) {
    const found = findings();
    const roots = inOrder(ordered(state.level, state.by)).filter((i) => !found || found[i]);
    const rows = [];
    const visit = (i, depth, all) => {
      if (rows.length > most) return;
      rows.push([i, depth]);
      if (!childrenOf.has(i) || !isOpen(i, found)) return;
      const inside = childrenOf.get(i).filter((child) => all || !found || found[child] || found[i] === 1);
      for (const child of inOrder(inside.sort(sorted[state.by]))) visit(child, depth + 1, all || (found && found[i] === 1));
    };
    for (const i of roots) visit(i, 0, false);
    return { rows, roots };
  }

  // ---------------------------------------------------------------- the list

  /** Where users stand on the axis, in 0..1, and its round numbers. */
  function scaleFor(roots) {
    let [top, bottom] = [0, Infinity];
    for (const i of roots) {
      top = Math.max(top, items.count[i] + margin(i));
      bottom = Math.min(bottom, Math.max(items.count[i] - margin(i), items.count[i] / 4));
    }
    top = top || 1;
    if (!state.log) {
      const stepSize = niceStep(top / 4.5);
      return { at: (users) => clamp(users / top, 0, 1), ticks: Array.from({ length: Math.floor(top / stepSize) + 1 }, (_, i) => i * stepSize) };
    }
    const least = clamp(Math.min(bottom, isNumber(hiddenCount) ? hiddenCount * 0.8 : Infinity), 1e-3, top / 2);
    const at = (users) => clamp(Math.log(Math.max(users, least) / least) / Math.log(top / least), 0, 1);
    const ticks = [];
    for (let power = Math.floor(Math.log10(least)); power <= Math.log10(top); power++) {
      for (const tick of [10 ** power, 3 * 10 ** power]) if (tick >= least && tick <= top && (!ticks.length || at(tick) - at(ticks[ticks.length - 1]) > 0.14)) ticks.push(tick);
    }
    return { at, ticks };
  }
  const left = (element, share, extent = null) => {
    element.style.left = `${100 * share}%`;
    if (extent !== null) element.style.width = `${100 * extent}%`;
    return element;
  };
  const shareOf = (i) => {
    const share = (100 * items.count[i]) / (usersOf.get(items.level[i]) || 1);
    return share >= 0.01 ? `${share.toFixed(share >= 10 ? 1 : 2)}%` : share > 0 ? "< 0.01%" : "0%";
  };

  function barOf(i, { at, ticks }) {
    const [low, mid, high] = [items.count[i] - margin(i), items.count[i], items.count[i] + margin(i)].map(at);
    const zone = isNumber(hiddenCount) ? at(hiddenCount) : 0;
    return h("div", { class: "plot", "aria-hidden": "true" },
      ticks.map((tick) => left(h("i", { class: "rule" }), at(tick))),
      zone > 0.003 && left(h("i", { class: "zone" }), 0, zone),
      left(h("i", { class: "fill" }), 0, mid),
      left(h("i", { class: "whisker" }), low, high - low),
      state.log && left(h("i", { class: "dot" }), mid));
  }
  const branching = () => cached(`branching ${state.level}`, () => (ordered(state.level, "count").some((i) => childrenOf.has(i)) ? 1 : -1)) > 0;
  function nameOf(i, depth, open) {
    const [name, parent] = [items.name[i], items.parent[i]];
    const stem = depth && name.startsWith(items.name[parent]) ? items.name[parent] : "";
    const rest = name.slice(stem.length);
    const words = h("bdi", { title: name }, stem && h("span", { class: "stem" }, stem), rest || (stem ? "" : h("em", null, "(empty)")), items.cut[i] ? h("span", { class: "stem" }, "\u2026") : null);
    const inside = childrenOf.get(i);
    if (!inside) return [branching() && h("span", { class: "leaf", "aria-hidden": "true" }), words];
    const button = h("button", { type: "button", class: "fold", "aria-expanded": String(open), "aria-label": `${plural(inside.length, "entry", "entries")} inside ${name || "(empty)"}` },
      h("span", { "aria-hidden": "true" }, "\u203a"));
    button.dataset.row = i;
    return [button, words];
  }
  function rowOf([i, depth], scale, found) {
    const open = childrenOf.has(i) && isOpen(i, found);
    const name = h("th", { scope: "row", role: "rowheader", class: "name" }, h("div", { class: "label" }, nameOf(i, depth, open)));
    name.firstChild.style.paddingLeft = `${Math.min(depth, 8) * 1.1}rem`;
    return h("tr", { role: "row", class: depth ? "inner" : "outer" },
      h("td", { role: "cell", class: "rank" }, depth ? "" : whole(rankOf(items.level[i]).get(i))),
      name,
      h("td", { role: "cell", class: "bar" }, barOf(i, scale)),
      h("td", { role: "cell", class: "users" }, whole(items.count[i]), " ", h("small", null, `\u00b1 ${whole(margin(i))}`)),
      h("td", { role: "cell", class: "share" }, shareOf(i)));
  }

  function show() {
    const { rows, roots } = choose(state.shown);
    const scale = scaleFor(roots);
    const found = findings();
    $("list").replaceChildren(...rows.slice(0, state.shown).map((row) => rowOf(row, scale, found)));
    $("axis").replaceChildren(...scale.ticks.map((tick) => left(h("span", null, short(tick)), scale.at(tick))));
    document.body.classList.toggle("logarithmic", state.log);
    for (const by of ["name", "count"]) {
      const direction = state.by === by ? (state.down ? "descending" : "ascending") : "none";
      $(`by-${by}`).setAttribute("aria-sort", direction);
    }
    const all = sizeOf.get(state.level) || 0;
    const shown = rows.slice(0, state.shown).filter(([, depth]) => !depth).length;
    const kinds = many(state.level);
    $("status").textContent = state.filter ? `${whole(roots.length)} of ${whole(all)} ${kinds} match` : shown < all ? `First ${whole(shown)} of ${whole(all)} ${kinds}` : counted(all, state.level);
    $("nothing").hidden = rows.length > 0;
    $("nothing").textContent = state.filter ? "No published name holds this text. What is not here may still exist." : "Nothing was published: nothing was shared by enough of the drawn users.";
    $("next").hidden = rows.length <= state.shown;
    $("next").textContent = `Show ${whole(state.shown)} more`;
  }

  function setLevel(level) {
    state.level = levels.includes(level) ? level : finest;
    const round = rounds.find((one) => (one.level || 0) === state.level) || (rounds.length === 1 ? rounds[0] : null);
    const size = sizeOf.get(state.level) || 0;
    $("step").replaceChildren(
      h("b", null, size ? counted(size, state.level) : "Nothing was published"),
      [size ? ` that ${size === 1 ? "stands" : "stand"} for about ${large(usersOf.get(state.level))} users.` : ".", round ? drawWords(round) : "",
        state.level === last ? topWords() : "", size && finest !== last ? `${last ? `At prefix length ${last}` : "Of whole items"} nothing was published.` : ""].filter(Boolean).join(" "));
    for (const button of $("levels").children) button.setAttribute("aria-pressed", String(Number(button.dataset.level) === state.level));
    restart();
  }
  function restart() {
    state.shown = WINDOW;
    $("scroll").scrollTop = 0;
    show();
  }
  function sortBy(by) {
    state.down = state.by === by ? !state.down : by === "count";
    state.by = by;
    restart();
  }
  function setLog(on) {
    state.log = $("logarithmic").checked = Boolean(on);
    show();
  }
  function setFilter(text) {
    state.filter = $("filter").value = String(text);
    for (const name of cache.keys()) if (name.startsWith("find ")) cache.delete(name);
    state.toggled.clear();
    restart();
  }

  let typing = 0;
  $("filter").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => setFilter($("filter").value), 80);
  });
  for (const by of ["name", "count"]) $(`by-${by}`).querySelector("button").addEventListener("click", () => sortBy(by));
  $("logarithmic").addEventListener("change", (event) => setLog(event.target.checked));
  $("next").addEventListener("click", () => {
    const before = $("list").children.length;
    state.shown *= 2;
    show();
    $("list").children[before]?.querySelector("th")?.setAttribute("tabindex", "-1");
    $("list").children[before]?.querySelector("th")?.focus({ preventScroll: true }); // reading goes on where it was
  });
  $("list").addEventListener("click", (event) => {
    const row = event.target.closest("button[data-row]")?.dataset.row;
    if (row === undefined) return;
    if (!state.toggled.delete(Number(row))) state.toggled.add(Number(row));
    show();
    $("list").querySelector(`button[data-row="${row}"]`)?.focus({ preventScroll: true });
  });

  if (levels.length > 1) {
    $("levels").hidden = false;
    $("levels").append(h("span", { "aria-hidden": "true" }, "Prefix length"), ...levels.map((level) => {
      const button = h("button", { type: "button", "aria-label": level ? `Prefix length ${level}` : "Whole items" }, level ? String(level) : "whole");
      button.dataset.level = level;
      button.addEventListener("click", () => setLevel(level));
      return button;
    }));
  }
  $("zone-key").hidden = !isNumber(hiddenCount);

  // ---------------------------------------------------------------- begin

  showHeader(headline(), [budgetChip(), ["Published", counted(sizeOf.get(finest) || 0, finest)], hiddenChip()]);
  showPledge();
  showSampleReport([
    paragraph("An estimate is what was counted among the drawn users, scaled up. Its range of \u00b1 1.96 standard deviations holds the truth about 95 times in 100. Large items are known well for their size, small ones poorly."),
    paragraph(missingLong("An item")),
    paragraph("An item that only just passed the threshold tends to be estimated a little high: had fewer of its users been drawn, it would not be here."),
    paragraph(`Shares are of the users that the published ${levels.length > 1 ? "names of the same length" : many(finest)} stand for.`),
  ]);
  setLevel(finest);
  window.sfumato = { items, setLevel, setLog, setFilter, sortBy, get state() { return { ...state, toggled: [...state.toggled] }; } };
