// The panel and the report of a map of cells: levels, and the list of places with most users.

  const PLAY = "Play the levels";
  const SHOWN = 10; // places listed at first; every further click doubles them
  const nameOf = (layer) => `Level ${layer.depth}`;
  let listed = SHOWN;

  function showPlaces() {
    const layer = layers[state.layer];
    layer.ranked ??= Array.from({ length: layer.n - layer.from }, (_, at) => layer.from + at).sort((a, b) => layer.count[b] - layer.count[a] || a - b);
    const most = layer.ranked.length ? layer.count[layer.ranked[0]] || 1 : 1;
    const focused = [...$("top").children].findIndex((item) => item.contains(document.activeElement));
    $("top").replaceChildren(...layer.ranked.slice(0, listed).map((i) => {
      const bar = h("i");
      bar.style.width = `${(100 * layer.count[i]) / most}%`;
      bar.style.background = PAINT.css[0][layer.shade[i]];
      const button = h("button", { type: "button", title: "Show on the map" },
        h("span", null, place(...middleOf(layer.level[i], layer.x[i], layer.y[i]), listDigits)), h("b", null, whole(layer.count[i])),
        h("span", { class: "number" }, `\u00b1 ${whole(Z * layer.stddev[i])}`), h("span", { class: "bar", "aria-hidden": "true" }, bar));
      button.addEventListener("click", () => flyTo(layer, i));
      return h("li", null, button);
    }));
    if (!layer.ranked.length) $("top").append(h("li", { class: "step" }, "No cell was published at this level."));
    $("next").hidden = listed >= layer.ranked.length;
    if (focused >= 0) $("top").children[focused]?.querySelector("button")?.focus({ preventScroll: true });
  }

  /** Says what layer `next` is, and returns its name. */
  function showLayer(next) {
    const layer = layers[next];
    const own = layer.n - layer.from;
    const name = `${nameOf(layer)}${layers.length > 1 ? ` of ${layers[layers.length - 1].depth}` : ""}`;
    const users = layer.count.slice(layer.from).reduce((sum, count) => sum + count, 0);
    const what = own ? `${plural(own, "cell")} of ${cellSize(layer.depth)}, about ${large(users)} users.` : `of the cells of ${cellSize(layer.depth)}, none was published.`;
    $("step").replaceChildren(h("b", null, name), `: ${[what, drawWords(layer), next === layers.length - 1 ? topWords() : ""].filter(Boolean).join(" ")}`);
    showPlaces();
    buildLegend();
    $("scale-title").hidden = $("ramp").hidden = $("ticks").hidden = own === 0;
    return name;
  }
  $("next").addEventListener("click", () => {
    const before = listed;
    listed *= 2;
    showPlaces();
    $("top").children[before]?.querySelector("button")?.focus({ preventScroll: true });
  });

  // ---------------------------------------------------------------- begin

  const deepest = Math.max(layers.findLastIndex((layer) => layer.n > layer.from), 0); // the last rounds may have published nothing
  const finest = layers[deepest];
  state.layer = deepest;
  const single = layers.length === 1;
  if (single) $("steps").querySelector("h2").textContent = "What is shown";
  $("slide").hidden = $("beneath").hidden = single;
  $("key").textContent = missing();
  showHeader(headline(), [budgetChip(), ["Published", plural(finest.n - finest.from, "cell")], ["Cell", cellSize(finest.depth)], hiddenChip()]);
  showPledge();
  showSampleReport([
    paragraph("An estimate is what was counted among the drawn users, scaled up. Its range of \u00b1 1.96 standard deviations holds the truth about 95 times in 100. Crowded cells are known well for their size, quiet ones poorly."),
    paragraph(`${missingLong("A cell")} The map leaves such cells dark: that is the ground, not a count of zero.`),
    paragraph("A cell that only just passed the threshold tends to be estimated a little high: had fewer of its users been drawn, it would not be here."),
    paragraph(`Colours run from the least to the most crowded cell${single ? "" : " of a level, so they compare cells of one level, not levels. The grey terraces beneath are the larger cells of the levels before, the lighter the finer"}.`),
  ], { region: `${region.west}, ${region.south}, ${region.east}, ${region.north}`, "grid depth": depth });
  openMap();
  window.sfumato = Object.assign(mapHandles, { flyTo: (at) => flyTo(layers[state.layer], layers[state.layer].ranked[at]) });
