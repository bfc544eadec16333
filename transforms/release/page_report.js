// The heatmap's panel and report.

  const hueOf = (i) => PAINT.css[0][Math.round(70 + (150 * (i + 0.5)) / rounds.length)];
  const PLAY = "Play the sub-queries";

  /** Says what layer `next` is, and returns its name. */
  function showLayer(next) {
    const layer = layers[next];
    const number = rounds.findIndex((round) => round.layer === next);
    const name = layer.combined ? SAY.name : `Sub-query ${number + 1} of ${rounds.length}`;
    const smaller = layer.entries > layer.n;
    $("step").replaceChildren(h("b", null, name), layer.combined
      ? ` ${SAY.final} ${smaller ? `Shown in ${plural(layer.n, "cell")}, it has ${whole(layer.entries)}. ` : ""}${rounds.length > 1 ? "All" : "It"} spent ε = ${significant(layer.epsilon)}; ${SAY.known(layer, smaller ? "count shown" : "count")}.`
      : ` asked about ${asked(layer.vector_length)}${smaller ? `, shown here as ${whole(layer.n)} larger ${layer.n === 1 ? "one" : "ones"}` : ""}. It spent ε = ${significant(layer.epsilon)}; ${SAY_ANY.known(layer, smaller ? "of these" : "count")}.`);
    for (const row of $("rows").querySelectorAll("button")) row.setAttribute("aria-current", String(Number(row.dataset.layer) === next));
    for (const part of $("budget").querySelectorAll("i[data-round]")) part.classList.toggle("off", !layer.combined && Number(part.dataset.round) > number);
    return name;
  }

  const population = get("privacy.population", get("population", {}));
  const populationEpsilon = population.source === "noisy" && isNumber(population.epsilon) ? population.epsilon : 0;
  const spent = get("privacy.epsilon_spent", rounds.reduce((sum, round) => sum + round.epsilon, populationEpsilon));
  const epsilon = get("privacy.epsilon", spent + last.remaining);

  const users = get("cohort.users", get("privacy.cohort.users", population.users ?? null));
  const pledge = () => promised("map", epsilon);

  function buildPanel() {
    const most = Math.max(...rounds.map((round) => round.epsilon), 1e-12);
    const bar = (share, colour) => {
      const part = h("i");
      part.style.width = `${100 * clamp(share, 0, 1)}%`;
      part.style.background = colour;
      return part;
    };
    const rowOf = (layer, attributes, ...children) => {
      const row = layer < 0 ? h("div", { class: "round" }, children) : h("button", { type: "button", "data-layer": layer, ...attributes }, children);
      if (layer >= 0) row.addEventListener("click", () => choose(layer));
      $("rows").append(h("li", null, row));
    };
    rounds.forEach((round, i) => {
      const part = bar(round.epsilon / epsilon, hueOf(i));
      part.dataset.round = i;
      part.title = `Sub-query ${i + 1}: ε ${significant(round.epsilon)}`;
      $("budget").append(part);
      rowOf(round.layer, { title: `Show sub-query ${i + 1}`, "aria-label": `Sub-query ${i + 1}: epsilon ${significant(round.epsilon)}, ${asked(round.length)}` },
        h("span", null, String(i + 1)), h("span", { class: "bar" }, bar(Math.max(round.epsilon / most, 0.012), hueOf(i))),
        h("span", { class: "number" }, `ε ${significant(round.epsilon)}`), h("span", { class: "number" }, asked(round.length, round.length < 1e5 ? whole : short)));
    });
    if (last.combined && rounds.some((round) => round.layer >= 0)) {
      rowOf(layers.length - 1, { title: "Show the published map" }, h("span", { class: "whole" }, SAY.name), h("span", { class: "number" }, plural(last.entries, "cell")));
    }
    $("rows").classList.toggle("roomy", method !== "adaptive" && rounds.some((round) => round.length >= 1e4));
    $("title").textContent = SAY.title;
    $("slide").hidden = layers.length < 2 && method !== "adaptive";
    if (populationEpsilon) {
      const part = bar(populationEpsilon / epsilon, "#6f6a80");
      part.title = `Number of users: ε ${significant(populationEpsilon)}`;
      $("budget").prepend(part);
    }
    const text = `${significant(spent)} of ${significant(epsilon)} spent, ${significant(Math.max(epsilon - spent, 0))} left`;
    $("budget").setAttribute("aria-label", text);
    $("budget-text").textContent = populationEpsilon ? `${text}; ${significant(populationEpsilon)} of it on the number of users` : text;
    $("pledge").textContent = unsafe ? "Made with a demonstration seed, this map protects no one." : pledge();
  }

  // ---------------------------------------------------------------- the report

  const bitsPerClient = get("communication.bits_per_client");

  function promise() {
    const source = get("privacy.randomness.source");
    const delta = get("privacy.delta", 0);
    const samplingRate = get("cohort.sampling_rate", get("privacy.cohort.sampling_rate"));
    const lead = unsafe
      ? "This release keeps no one's secret: its noise came from a seed that is known. With a secret key, the following would hold."
      : null;
    return section("What this map promises",
      lead && h("p", { class: "lead" }, lead),
      h("p", { class: "lead" }, pledge()),
      h("div", { class: "columns" }, epsilon <= VAGUE && beliefPicture(epsilon, (high) =>
        `Suppose someone thinks it an even bet that you are in the data. However they study this map, and whatever else they know, they cannot end up more than ${high} sure that you are in it, nor more than ${high} sure that you are not.`), facts([
        ["Who is protected", `Each ${get("privacy.unit", "user")} as a whole, not just a single record`],
        ["What is compared", get("privacy.adjacency")],
        ["What each adds", get("privacy.contribution_bound")],
        ["Privacy budget", `ε = ${significant(epsilon)}, of which ${significant(spent)} is spent.${epsilon <= VAGUE ? " The factor above is e to the power ε." : ""}`],
        ["Chance of failure", delta > 0 ? `δ = ${significant(delta)}: the bound may fail with about this chance` : `none: δ = 0${noise === "central" ? "" : ", given which devices take part"}`],
        ["Source of the noise", source && `${source}${unsafe ? " (known to others: not private)" : source === "key file" ? ": private as long as the key stays secret" : ""}`],
        ["Number of users", population.source === "noisy" ? `estimated with noise of its own, ± ${whole(1.96 * (population.stddev ?? population.noise_stddev ?? 0))} at 95%, for ε = ${significant(populationEpsilon)}` : population.source === "public" ? "public knowledge, given to the job" : null],
        ["Share of users asked", isNumber(samplingRate) ? percent(samplingRate) : null],
      ])));
  }

  function reading() {
    const lostCells = last.lost.reduce((sum, flag) => sum + flag, 0);
    return h("div", { class: "columns" },
      section("How to read it",
        h("p", null, `Every count carries random noise, drawn once. ${SAY.noise()}`),
        h("p", null, SAY.lost(lostCells, last.n)),
        h("p", null, oneSize && method !== "adaptive" ? `All cells are of one size, ${metres(groundWidth / 2 ** finest)} × ${metres(groundHeight / 2 ** finest)}.` : SAY.sizes()),
        coarsened && h("p", null, `The map has ${plural(last.entries, "cell")}. On this page they are added up to ${whole(last.n)}, whose noise adds up too; cells.parquet has them all.`)),
      section("How it was made",
        h("p", null, SAY.made()),
        h("p", null, noiseWords()),
        isNumber(bitsPerClient) && h("p", null, `On phones, ${rounds.length > 1 || method === "adaptive" ? "all rounds together" : "it"} would cost each one ${bytes(bitsPerClient)} of upload${isNumber(get("communication.vector_entries")) ? ` for ${plural(get("communication.vector_entries"), "number")}` : ""}.`)));
  }

  function table() {
    const shared = noise !== "central"; // with secure aggregation
    const rows = rounds.map((round, i) => [String(i + 1), significant(round.epsilon), whole(round.length), `± ${whole(round.margin)}`, significant(round.stddev),
      ...(shared ? [whole(round.shards), whole(round.lost), isNumber(round.modulus) ? round.modulus.toLocaleString("en") : "–", isNumber(round.bits) ? bytes(round.bits) : "–"] : [])]);
    const heads = ["Round", "ε spent", `${SAY.unit[1][0].toUpperCase()}${SAY.unit[1].slice(1)} asked`, "Noise at 95%", "Noise, std. dev.", ...(shared ? ["Groups", "Groups lost", "Modulus", "Sent per phone"] : [])];
    const total = ["All", significant(spent - populationEpsilon), whole(rounds.reduce((sum, round) => sum + round.length, 0)), "", "",
      ...(shared ? ["", whole(rounds.reduce((sum, round) => sum + round.lost, 0)), "", isNumber(bitsPerClient) ? bytes(bitsPerClient) : "–"] : [])];
    return section("Round by round", tableOf("Table of sub-queries", heads, rows, total));
  }

  // ---------------------------------------------------------------- begin

  showHeader(isNumber(users) ? `About ${large(users)} users${unsafe ? "" : ", no one in particular"}` : "Private heatmap", [
    ["Privacy budget", `ε = ${significant(epsilon)}`],
    ["Ground", `${metres(groundWidth)} × ${metres(groundHeight)}`],
    method !== "adaptive_grid" && [coarsened && !oneSize ? "Finest cell shown" : "Finest cell", metres(groundWidth / 2 ** finest)],
  ]);
  buildPanel();
  showReport([promise(), reading(), table()], { region: `${region.west}, ${region.south}, ${region.east}, ${region.north}`, "grid depth": depth });
  openMap();
  window.sfumato = mapHandles;
