// The cells of a map, coloured by a statistic from the lowest to the highest published value.

  const LOOK = { first: 72, least: 3, ground: "#191720", hatched: false, dropped: false, swatch: "#191720" };
  const PLAY = "Play the layers";
  const [layer0] = layers;
  const rows0 = data.cells;
  const [lowest, highest] = layer0.ends;
  layer0.n = layer0.x.length;
  layer0.level = Array.from({ length: layer0.n }, () => layer0.depth);
  layer0.maxLevel = layer0.depth;
  layer0.area = rows0.value.map((value) => (isNumber(value) ? 4 ** (depth - layer0.depth) : 0)); // without a value it is not drawn
  layer0.lost = new Uint8Array(layer0.n);
  layer0.shade = rows0.value.map((value) => Math.round(LOOK.first + (255 - LOOK.first) * (highest > lowest && isNumber(value) ? clamp((value - lowest) / (highest - lowest), 0, 1) : 1)));
  layer0.places = new Map(layer0.x.map((x, i) => [keyOf(layer0.depth, x, layer0.y[i]), i]));
  const valued = rows0.value.map((_, i) => i).filter((i) => isNumber(rows0.value[i])).sort((a, b) => rows0.value[b] - rows0.value[a] || a - b);

  const legendTicks = () => (!valued.length ? [] : highest > lowest ? layer0.ticks.map((text, i) => [i / 2, text]) : [[1, layer0.ticks[0]]]);
  /** The cell under a place, {level, x, y, i}; i is -1 where nothing is known of it. Null outside. */
  function spotAt(layer, u, v) {
    if (!(u >= 0 && u <= 1 && v >= 0 && v <= 1)) return null;
    const side = 2 ** layer.depth;
    const [x, y] = [u, v].map((share) => Math.min(Math.floor(share * side), side - 1));
    return { level: layer.depth, x, y, i: layer.places.get(keyOf(layer.depth, x, y)) ?? -1 };
  }
  const extent = cellSize(layer0.depth);
  /** What the map says of a cell: a value, its margin, and rows of facts. */
  function tipWords(layer, { i, x, y }, lon, lat) {
    const where = ["Place", place(...(i < 0 ? [lon, lat] : middleOf(layer.depth, x, y)), placeDigits)];
    if (i < 0 || !isNumber(rows0.value[i])) return { value: "no data", margin: "too few clients, or nobody", rows: [["Cell", extent], where] };
    return { value: rows0.text[i], margin: `from ${rows0.range[i]} at 95%`, rows: [["Clients", `about ${whole(rows0.clients[i])}`], ["Name", rows0.name[i]], ["Cell", extent], where] };
  }
  function lookup(lon, lat) {
    const spot = spotAt(layer0, (lon - region.west) / width, (region.north - lat) / height);
    return spot && (spot.i < 0 ? { ...spot, known: false } : { ...spot, known: isNumber(rows0.value[spot.i]), value: rows0.value[spot.i], cell_id: rows0.name[spot.i] });
  }

  function showLayer() {
    $("cells-step").textContent = valued.length ? `${plural(valued.length, "cell")} of ${extent}, coloured from ${layer0.ticks[0]} to ${layer0.ticks[2]}. Dark ground has too few clients, or nobody.` : "No cell was published.";
    return rows0.title;
  }
  function openCells() {
    const listed = (ids) => ids.map((i) => {
      const swatch = h("i", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = PAINT.css[0][layer0.shade[i]];
      const button = h("button", { type: "button", title: "Show on the map" }, swatch, h("span", null, rows0.name[i]), h("b", null, rows0.text[i]), h("span", { class: "number" }, rows0.range[i]));
      button.addEventListener("click", () => flyTo(layer0, i));
      return h("li", null, button);
    });
    // Listed are cells that differ from the average for certain, whichever of all cells might have been listed.
    const MANY = 5;
    for (const [id, ids, word] of [["highest", valued.filter((i) => rows0.differs[i] > 0), "above"], ["lowest", valued.filter((i) => rows0.differs[i] < 0).reverse(), "below"]]) {
      $(id).append(...listed(ids.slice(0, MANY)));
      if (!ids.length) $(id).append(h("li", { class: "none" }, `No cell is ${word} the average for certain.`));
      $(id).closest("section").hidden = !valued.length;
    }
    $("scale-title").textContent = `${rows0.title} of ${column}`;
    $("canvas").setAttribute("aria-label", `Map of ${rows0.title} by cell`);
    $("scale-title").hidden = $("ramp").hidden = !valued.length;
    openMap();
    return Object.assign(mapHandles, { flyTo: (i) => flyTo(layer0, i) });
  }
