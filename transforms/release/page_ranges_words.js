// The report of a model of range queries, and the page put together.

  const privacy = get("privacy", {});
  const epsilon = isNumber(privacy.epsilon) ? privacy.epsilon : null;
  const delta = isNumber(privacy.delta) ? privacy.delta : 0;
  const method = String(get("method", "unknown"));
  const kind = get("results.kind", model.kind);
  const partCount = isNumber(get("results.parts")) ? get("results.parts") : null;
  const population = get("privacy.population", {});
  const users = population.users ?? get("results.users"); // cells' noise adds up to more than that of one count
  const cell = get("cell_metres");
  const asked = get("sizes_metres");
  const sized = (pair) => (Array.isArray(pair) && pair.length === 2 && pair.every(isNumber) ? pair : null);
  const cellWords = sized(cell) ? `${metres(cell[0])} \u00d7 ${metres(cell[1])}` : null;
  const sizeWords = sized(asked) ? `${metres(asked[0])} to ${metres(asked[1])}` : null;
  const pledge = () => (epsilon === null ? "The manifest names no privacy budget, so nothing can be promised." : promised("map", epsilon, delta > 0 ? `, but for a chance of ${tiny(delta)}` : ""));

  const METHODS = {
    grid: "the noisy counts of a uniform grid", ug: "a uniform grid whose cells are as wide as the number of users and the budget suggest",
    ag: "a grid whose crowded cells were cut again", privtree: "a tree of squares, cut again wherever a noisy count said that people are (PrivTree)",
    dawa: "neighbouring cells joined where they looked alike (DAWA)", adaptive: "the cells of a private heatmap", snh: "neural networks that learned from the noisy counts of a grid",
  };

  function promise() {
    const { source } = get("privacy.randomness", {});
    const margin = isNumber(population.noise_stddev) && population.noise_stddev > 0 ? `, \u00b1 ${whole(1.96 * population.noise_stddev)} at 95%` : "";
    return section("What this map promises",
      unsafe && h("p", { class: "lead" }, "This release keeps no one's secret: its noise came from a seed that is known. With a secret key, the following would hold."),
      h("p", { class: "lead" }, pledge()),
      h("div", { class: "columns" }, epsilon !== null && epsilon <= VAGUE && beliefPicture(epsilon, (high) =>
        `Suppose someone thinks it an even bet that you are in the data. However they study this map, and whatever else they know, they cannot end up more than ${high} sure that you are in it, nor more than ${high} sure that you are not.`), facts([
        ["Who is protected", `Each ${privacy.unit ?? "user"} as a whole, not just a single record`],
        ["What is compared", privacy.adjacency],
        ["What each adds", privacy.contribution_bound],
        ["Privacy budget", epsilon === null ? null : `\u03b5 = ${significant(epsilon)}${epsilon <= VAGUE ? ": the factor above is e to the power \u03b5" : ""}`],
        ["Chance of failure", delta > 0 ? `\u03b4 = ${tiny(delta)}` : "none: \u03b4 = 0"],
        ["What protects", privacy.mechanism],
        ["Where noise is added", privacy.trust === "central" ? "by whoever runs the job, who sees the exact counts" : privacy.trust === "secagg" ? "in every group's sum, of which the server sees no single report (secure aggregation)" : null],
        ["Noise of a count", isNumber(privacy.noise_stddev) ? `${significant(privacy.noise_stddev)} users (standard deviation)` : null],
        ["Source of the noise", source && randomness(source)],
        ["Number of users", isNumber(population.users) ? `${whole(population.users)}${margin}${population.source === "noisy" ? ", estimated with noise of its own" : ""}` : null],
      ])));
  }
  function reading() {
    return section("How to read an answer",
      paragraph(model.kind === "raster"
        ? `The model answers any square, but what it computes is too much for a page. Here it was asked about a raster of ${plural(parts.n, "cell")}, ${metres(regionWidth / (model.x_edges.length - 1))} wide, and answers add these up. Its own answers, by the command below, may differ a little.`
        : model.kind === "network" ? `An answer is what ${plural(model.networks.length, "neural network")} make of the noisy counts in and around the square: they learned from simulated people how far such counts can be trusted. Squares more than a little larger than ${metres(asked ? asked[1] : 0)} are answered by the counts as they are. Answers are of squares about people, and lean to the high side where nobody is: do not add up many small ones, ask for a large one. The map shows what the networks make of each cell.`
        : "An answer adds up all that was counted in the square. Where the square's border cuts a cell, people are taken to be spread evenly in it, and the share inside counts."),
      paragraph(model.error === "lower bound"
        ? "The stated margin is a lower bound of the error: it holds the noise, and what the part in the square's middle may hide. What is released cannot tell how unevenly people are spread inside parts, or how errors of neighbouring parts go together, so the truth lies farther off than the margins say in some squares."
        : "In squares about people, the truth lies within the stated margin about 68 times in 100 or more, and within twice the margin about 95 times. The margin holds the noise and what people who are spread unevenly do, as far as the model can tell."),
      paragraph(`Small squares where few people are can only be told to hold few: their margin may exceed their number.${parts.lost.includes(1) ? " Parts that are lost in noise are grey on the map, and still add up in larger squares." : ""}`),
      sizeWords && paragraph(`The model was made for squares of ${sizeWords}; others are answered too, perhaps less well.`),
      paragraph("However many squares are asked about, the promise stays the same: all answers come from what was released once, and nobody's data are looked at again."));
  }
  function making() {
    const some = (one) => (partCount ? plural(partCount, one) : `${one}s`);
    const counted = kind === "grid" || kind === "network" ? `The region was cut into ${some("cell")}${cellWords ? ` of ${cellWords}` : ""}, and the users in each were counted once, with noise.`
      : kind === "partition" ? `The region was cut into ${some("rectangle")}, by what noisy counts told of where people are.` : null;
    return section("How it was made",
      paragraph(`Method \u201c${method}\u201d: ${Object.hasOwn(METHODS, method) ? METHODS[method] : "see the documents of the command"}.`),
      counted && paragraph(counted),
      paragraph("For thousands of squares, ask the model on your own machine, which needs no data and no network:"),
      h("pre", { tabindex: "0", role: "region", "aria-label": "Command" }, "sfumato ranges answer --model . \\\n    --queries squares.parquet --output answers.parquet"),
      paragraph("where squares.parquet has columns x, y (degrees, of the centre) and size (metres)."));
  }

  showHeader(isNumber(users) && users > 0 ? `About ${large(users)} users, in any square you draw` : "How many people in any square", [
    ["Privacy budget", `\u03b5 = ${epsilon === null ? "unknown" : significant(epsilon)}${delta > 0 ? `, \u03b4 = ${tiny(delta)}` : ""}`],
    ["Ground", `${metres(groundWidth)} \u00d7 ${metres(groundHeight)}`],
    cellWords ? ["Cell", cellWords] : partCount ? ["Parts", whole(partCount)] : null,
    sizeWords ? ["Made for squares of", sizeWords] : null,
  ].filter(Boolean));
  $("pledge").textContent = unsafe ? "Made with a demonstration seed, this map protects no one." : pledge();
  $("grid-words").textContent = model.kind === "raster" ? "Outline the raster" : model.x_edges ? "Outline the cells" : "Outline the parts";
  $("fades").hidden = !parts.lost.includes(1);
  $("swatch").closest("p").hidden = !parts.lost.includes(1);
  $("canvas").setAttribute("aria-label", "Map of estimated users; the square asked about is outlined");
  showReport([promise(), h("div", { class: "columns" }, reading(), making())], { region: `${region.west}, ${region.south}, ${region.east}, ${region.north}`, "grid depth": depth });
  setSquare(state.square);
  setDrag("draw");
  openMap();
  window.sfumato = Object.assign(mapHandles, {
    /** The answer to a square: degrees, degrees, metres. */
    ask: (x, y, metresWide) => ask({ x, y, size: metresWide }),
    square: () => ({ ...state.square }),
    setSquare: (x, y, metresWide) => setSquare({ x, y, size: metresWide }), setDrag, top: TOP,
  });
