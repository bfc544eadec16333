// The heatmap's panel and report.

  const hueOf = (i) => PAINT.css[0][Math.round(70 + (150 * (i + 0.5)) / rounds.length)];
  const PLAY = "Play the sub-queries";

  /** Says what layer `next` is, and returns its name. */
  function showLayer(next) {
    const layer = layers[next];
    const number = rounds.findIndex((round) => round.layer === next);
    const name = layer.combined ? SAY.name : `Sub-query ${number + 1} of ${rounds.length}`;
    const smaller = layer.entries > layer.n;
    const cost = parallel ? `Each user answered one of the ${whole(rounds.length)} sub-queries, for at most ε = ${significant(ofUser)}` : `${rounds.length > 1 ? "All" : "It"} spent ε = ${significant(ofUser)}`;
    $("step").replaceChildren(h("b", null, name), layer.combined
      ? ` ${SAY.final} ${smaller ? `Shown in ${plural(layer.n, "cell")}, it has ${whole(layer.entries)}. ` : ""}${cost}; ${SAY.known(layer, smaller ? "count shown" : "count")}.`
      : ` asked about ${asked(layer.vector_length / bins)}${smaller ? `, shown here as ${whole(layer.n)} larger ${layer.n === 1 ? "one" : "ones"}` : ""}. It spent ε = ${significant(layer.epsilon)}; ${SAY_ANY.known(layer, smaller ? "of these" : "count")}.`);
    for (const row of $("rows").querySelectorAll("button")) row.setAttribute("aria-current", String(Number(row.dataset.layer) === next));
    for (const part of $("budget").querySelectorAll("i[data-round]")) part.classList.toggle("off", !layer.combined && Number(part.dataset.round) > number);
    dress(next);
    return name;
  }

  const population = get("privacy.population", {});
  const populationEpsilon = isNumber(population.epsilon) ? population.epsilon : 0;
  const spent = parallel ? ofUser + populationEpsilon : get("privacy.epsilon_spent", ofUser + populationEpsilon);
  const epsilon = get("privacy.epsilon", spent + last.remaining);

  const users = get("results.users", get("cohort.users", get("privacy.cohort.users", population.users ?? null)));
  const usersMargin = 1.96 * get("results.users_stddev", 0); // at 95%
  /** The number of users with its error where that is 1% or more; a bound where they may be none. */
  const usersInWords = () => usersMargin > 0 && users < usersMargin
    ? `Fewer than ${large(Math.ceil(users + usersMargin))} users, too few to tell from none`
    : `About ${large(users)}${usersMargin > 0 && usersMargin >= 0.01 * users ? ` ± ${large(usersMargin)}` : ""} users`;
  const pledge = () => promised("map", epsilon);

  function buildPanel() {
    const most = Math.max(...rounds.map((round) => round.epsilon), 1e-12);
    const bar = (share, colour) => {
      const part = h("i");
      part.style.width = `${100 * clamp(share, 0, 1)}%`;
      part.style.background = colour;
      return part;
    };
    const ofPopulation = () => {
      if (!populationEpsilon) return null;
      const part = bar(populationEpsilon / epsilon, "#6f6a80");
      part.title = `Number of users: ε ${significant(populationEpsilon)}`;
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
      // One bar that the sub-queries fill together, or one for those who answered this one, beside the others'.
      $("budget").append(parallel ? h("span", { class: "lane" }, ofPopulation(), part) : part);
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
    $("budget").classList.toggle("parallel", parallel);
    if (!parallel && populationEpsilon) $("budget").prepend(ofPopulation());
    const rest = `${significant(Math.max(epsilon - spent, 0))} left`;
    const text = parallel ? `each user answers one of ${whole(rounds.length)} sub-queries: at most ${significant(spent)} of ${significant(epsilon)} spent, ${rest}` : `${significant(spent)} of ${significant(epsilon)} spent, ${rest}`;
    $("budget").setAttribute("aria-label", text);
    $("budget-text").textContent = populationEpsilon ? `${text}; ${significant(populationEpsilon)} of it on the number of users` : text;
    $("pledge").textContent = unsafe ? "Made with a demonstration seed, this map protects no one." : pledge();
  }

  // ---------------------------------------------------------------- the report

  const roundBits = rounds.map((round) => round.bits).filter(isNumber);
  const bitsPerClient = parallel && roundBits.length ? Math.max(...roundBits) : get("communication.bits_per_client");

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
        ["What each answers", parallel ? `one of ${whole(rounds.length)} sub-queries; budgets do not add up` : null],
        ["What each adds", get("privacy.contribution_bound")],
        ["Privacy budget", `ε = ${significant(epsilon)}, of which ${significant(spent)} is spent.${epsilon <= VAGUE ? " The factor above is e to the power ε." : ""}`],
        ["Chance of failure", delta > 0 ? `δ = ${significant(delta)}: the bound may fail with about this chance` : `none: δ = 0${get("privacy.participation.protected", true) ? "" : ", given who takes part, which is not protected"}`],
        ["Who takes part", get("privacy.participation.protected", true) ? null : get("privacy.participation.description")],
        ["Source of the noise", source && `${source}${unsafe ? " (known to others: not private)" : source === "key file" ? ": private as long as the key stays secret" : ""}`],
        ["Number of users", populationEpsilon ? `counted with noise of its own, ± ${whole(1.96 * (population.noise_stddev ?? 0))} at 95%, for ε = ${significant(populationEpsilon)}; with all answers ± ${whole(usersMargin)}` : population.source === "public" ? "public knowledge, given to the job" : null],
        ["Share of users asked", isNumber(samplingRate) ? percent(samplingRate) : null],
      ])));
  }

  function reading() {
    const lostCells = last.count.filter((_, i) => isLost(last, i)).length;
    return h("div", { class: "columns" },
      section("How to read it",
        h("p", null, `${SAY.opening} ${SAY.noise()}`),
        h("p", null, SAY.lost(lostCells, last.n)),
        h("p", null, oneSize && method !== "adaptive" ? `All cells are of one size, ${metres(groundWidth / 2 ** finest)} × ${metres(groundHeight / 2 ** finest)}.` : SAY.sizes()),
        coarsened && h("p", null, `The map has ${plural(last.entries, "cell")}. On this page they are added up to ${whole(last.n)}, whose margins add up too; cells.parquet has them all.`),
        clipped && h("p", null, `The scale of colours ends at ${significant(topDensity, 2)} users per km², so that a few crowded cells do not darken all others; what is denser has the brightest colour.`),
        rated && h("p", null, `A rate is the share of a cell's users who ${column !== null && isFlag ? `have “${column}”` : "are in a category"}. Its interval holds the chance of it, of which these users are a sample, 95 times in 100 for each cell by itself: it allows for the noise, and for how few they are. The rate that is shown is shrunk towards the average, the more the less is known of it. A cell is listed as high only where an interval that holds for all cells at once lies above the average. A rate whose interval covers more than half of the scale is hatched; where users are not clearly above zero, there is none.`)),
      section("How it was made",
        h("p", null, SAY.made()),
        parallel && h("p", null, `Every user answered one of the ${whole(rounds.length)} rounds only, so nobody spends more than the dearest of them costs. The groups were drawn by the key, whoever else takes part.`),
        warm && h("p", null, warmWords()),
        h("p", null, noiseWords()),
        isNumber(bitsPerClient) && h("p", null, `On phones, ${parallel ? "the round that it answers" : rounds.length > 1 || method === "adaptive" ? "all rounds together" : "it"} would cost each one ${parallel ? "at most " : ""}${bytes(bitsPerClient)} of upload${!parallel && isNumber(get("communication.vector_entries")) ? ` for ${plural(get("communication.vector_entries"), "number")}` : ""}.`)));
  }

  function table() {
    const shared = noise !== "central"; // with secure aggregation
    const rows = rounds.map((round, i) => [String(i + 1), significant(round.epsilon), whole(round.length), `± ${whole(round.margin)}`, significant(round.stddev),
      ...(shared ? [whole(round.shards), whole(round.lost), isNumber(round.modulus) ? round.modulus.toLocaleString("en") : "–", isNumber(round.bits) ? bytes(round.bits) : "–"] : [])]);
    const heads = ["Round", "ε spent", `${SAY.unit[1][0].toUpperCase()}${SAY.unit[1].slice(1)} asked`, "Noise at 95%", "Noise, std. dev.", ...(shared ? ["Groups", "Groups lost", "Modulus", "Sent per phone"] : [])];
    const lengths = rounds.map((round) => round.length);
    const total = [parallel ? "A user, at most" : "All", significant(spent - populationEpsilon), whole(parallel ? Math.max(...lengths) : lengths.reduce((sum, length) => sum + length, 0)), "", "",
      ...(shared ? ["", parallel ? "" : whole(rounds.reduce((sum, round) => sum + round.lost, 0)), "", isNumber(bitsPerClient) ? bytes(bitsPerClient) : "–"] : [])];
    return section("Round by round", tableOf("Table of sub-queries", heads, rows, total));
  }

  // ---------------------------------------------------------------- begin

  showHeader(isNumber(users) ? `${usersInWords()}${unsafe ? "" : ", no one in particular"}` : "Private heatmap", [
    ["Privacy budget", `ε = ${significant(epsilon)}`],
    ["Ground", `${metres(groundWidth)} × ${metres(groundHeight)}`],
    method !== "adaptive_grid" && [coarsened && !oneSize ? "Finest cell shown" : "Finest cell", metres(groundWidth / 2 ** finest)],
  ]);
  buildPanel();
  showReport([promise(), reading(), table()], { region: `${region.west}, ${region.south}, ${region.east}, ${region.north}`, "grid depth": depth });
  openMap();
  window.sfumato = Object.assign(mapHandles, { setColours, top: topDensity });
