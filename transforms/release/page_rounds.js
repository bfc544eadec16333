// A heatmap's rounds, which are its sub-queries, by the manifest; and the words that its method, what a user adds and
// its noise ask for. A method that is not known here gets words that hold for any.

  const method = get("parameters.method", "adaptive"); // older releases know no other
  const noise = get("parameters.noise", "shard");
  const contribution = get("parameters.contribution") ?? (String(get("privacy.contribution_bound", "")).startsWith("one distribution") ? "all" : "one");
  const parameter = (name) => get(`parameters.${name}`);
  const among = (table, name, other) => (Object.hasOwn(table, name) ? table[name] : other);

  /** Every sub-query, also those without a map; `layer` is the number of its map, or -1. */
  const bins = Math.max(1, Number(get("auxiliary.entries_per_node", 1)) || 1); // vector entries a cell
  const rounds = (() => {
    const given = get("sub_queries", get("privacy.sub_queries", []));
    const queries = Array.isArray(given) ? given.filter((query) => query !== null && typeof query === "object") : [];
    const answers = layers.filter((layer) => !layer.combined);
    const firstNumber = (...values) => values.find(isNumber);
    const round = (query, place) => {
      const layer = place >= 0 ? layers[place] : {};
      const shards = firstNumber(query.shards, layer.shards);
      const lost = firstNumber(query.shards_lost, layer.shards_lost);
      const stddev = firstNumber(query.noise_stddev, layer.stddev);
      return {
        layer: place, epsilon: firstNumber(query.epsilon, layer.epsilon), length: firstNumber(query.vector_length, layer.vector_length) / bins,
        stddev, margin: marginOf(stddev, (shards ?? 1) - (lost ?? 0)), shards, lost, modulus: query.modulus, bits: query.bits_per_client,
      };
    };
    const told = queries.map((query, i) => {
      const place = answers.findIndex((layer) => layer.index === query.index);
      return round(query, place < 0 && queries.length === answers.length ? i : place);
    }).filter((one) => [one.epsilon, one.length, one.stddev].every(isNumber));
    const shown = new Set(told.map((one) => one.layer));
    if (told.length && answers.every((_, i) => shown.has(i))) return told;
    return (answers.length ? answers : layers).map((_, i) => round((Array.isArray(given) && given[i]) || {}, i));
  })();

  // Where cohorts are disjoint every user answers one sub-query, and spends what that one costs.
  const parallel = get("privacy.composition") === "parallel" && rounds.length > 1;
  const ofUser = parallel ? Math.max(...rounds.map((round) => round.epsilon)) : rounds.reduce((sum, round) => sum + round.epsilon, 0);

  // ---------------------------------------------------------------- what the map is like

  const finestLevel = Math.log2(last.entries) / 2;
  const coarsened = last.entries > last.n;
  /** Whether all cells of the release have one size. Cells added up for this page say so only where they were a whole level. */
  const oneSize = last.n > 0 && last.level[0] === last.maxLevel && (!coarsened || Number.isInteger(finestLevel));
  const finest = coarsened && oneSize ? finestLevel : last.maxLevel;

  // ---------------------------------------------------------------- words

  const whatAsked = (where) => (contribution === "all" ? `what share of their records lay in each cell${where}` : `which cell${where} they were in`);
  const asks = parallel ? "asked a part of the users of its own" : "asked every user taking part";
  const each = rounds.length === 1 ? "It" : "Each round";
  const inRounds = plural(rounds.length, "round");
  const everyLevel = `The map was chosen from ${inRounds}, one for each level of the grid, from a few large cells to many small ones. Each ${asks} ${whatAsked(" of its level")}`;
  const bestLevel = "should err least, judged by the noisy sums alone: large cells blur, small ones drown in noise.";
  const bestRound = `sub-query ${whole(finest)}`; // there is one a level
  const inSketch = { mean: "the mean of its entries, one a row, less what other cells add on average", median: "the median of its entries, one a row, less what other cells add on average", min: "the least of its entries, one a row" };

  // With flat's keep_top: at most so many users are in a cell that was not kept; null where that cannot be told.
  const kept = last.combined && !last.posterior && !coarsened ? last.count.filter((count) => count !== 0) : [];
  const keptLeast = kept.length ? Math.max(kept.reduce((least, count) => Math.min(least, count)) + last.margin, 0) : null;
  const grid = rounds[rounds.length - 1]; // of an adaptive grid: the second

  const LEVELS = { title: "Level by level" };
  const METHODS = {
    adaptive: {
      made: () => `The map was found in ${inRounds}. ${each} ${asks} ${whatAsked("")}, ${rounds.length === 1 ? "and added up the answers with noise." : "added up the answers with noise, and used only the noisy sums to choose where to look more closely next."}`,
      sizes: () => "Cells are small where many users are and large where few are. A cell that has been divided in part stands for what its finer cells leave over.",
    },
    flat: {
      made: () => `The map was made in one round. It ${asks} ${whatAsked(" of one level")}, and added up the answers with noise.${last.combined && isNumber(parameter("keep_top")) ? ` Only the ${significant(parameter("keep_top"))}% of the cells with the largest noisy sums are kept; the others are set to zero.` : ""}`,
      name: "The published map", final: "keeps the largest counts and sets the others to zero.", dropped: () => keptLeast,
      known: (layer) => SAY_ANY.known(layer, "count that was kept"),
      lost: (cells, all) => (last.combined && keptLeast !== null
        ? `${whole(cells)} of the ${whole(all)} cells were not kept, or are lost in noise. One that was not kept has at most about ${whole(keptLeast)} users. The map hatches them.` : SAY_ANY.lost(cells, all)),
    },
    hierarchical: {
      ...LEVELS,
      made: () => `${everyLevel}, and added up the answers with noise. The map is the level that ${bestLevel} Its counts are as they came; the other levels' are not used.`,
      name: "The published map", final: `is the answer to ${bestRound}, whose level should err least.`,
    },
    spatial_decomposition: {
      ...LEVELS,
      made: () => `${everyLevel}, and added up the answers with noise. Then all levels were made to agree: every cell holds the sum of the four inside it, and the surer a count, the more it weighs. The map is the level that ${bestLevel}`,
      final: `make this map: the level of ${bestRound}, which should err least, improved by the others.`,
    },
    count_min: {
      unit: ["entry", "entries"], source: "from noise and from cells that share entries",
      made: () => `${everyLevel}, in a sketch${isNumber(parameter("sketch_rows")) && isNumber(parameter("sketch_width")) ? ` of ${plural(parameter("sketch_rows"), "row")} with ${plural(parameter("sketch_width"), "entry", "entries")} each` : ""}, in which many cells share an entry. The answers were added up with noise. A cell's count is ${among(inSketch, parameter("sketch_estimate"), "read from its entries, one a row")}. The map is the level that ${bestLevel}`,
      name: "The published map", final: `is read from the sketch of ${bestRound}, whose level should err least.`,
    },
    adaptive_grid: {
      made: () => `The map was made in ${inRounds}. The first ${asks} ${whatAsked(" of a coarse grid")}, and added up the answers with noise. The next divided every cell by its noisy count, the more finely the more users it had, and asked again. Both answers make the map; the surer one weighs more.`,
      known: () => `each cell of the second grid is known to ± ${whole(grid.margin)} users at 95% or better`,
      noise: () => `In the final map it is at most ± ${whole(grid.margin)} users, at 95%, in each of the ${whole(grid.length)} cells of the second grid, small or large, so crowded places are known well and quiet places poorly.`,
      lost: () => `${percent(last.area.reduce((sum, area, i) => sum + (isLost(last, i) ? area : 0), 0) / 4 ** depth)} of the map's area is lost in noise: a few users may be there or none. The map hatches it. Counts below zero are noise too; they are left as they came.`,
      sizes: () => "Where many users are, the second grid is fine. Its cells do not follow the squares of this map, so each is cut into squares, which share its users and its noise by their area. How its users are really spread over it is not known.",
      final: "make this map: two grids, of which the surer one weighs more.",
    },
    emd: {
      made: () => `The map was found in ${inRounds}. The first ${asks} ${whatAsked(" of a coarse level")}, and added up the answers with noise. Each round after it looked inside the ${isNumber(parameter("emd_width")) ? `${whole(parameter("emd_width"))} ` : ""}cells with the largest noisy sums. Then a map was fitted to ${parameter("emd_fit") === "all" ? "the noisy sums" : "the largest noisy sums"} of all rounds: of all maps without a negative count the one that differs from them least, where a large cell weighs more than a small one.`,
      sizes: () => `${METHODS.adaptive.sizes()} The margins are those of the noisy sums; the fit can be off by more where it left cells out.`,
      final: "make this map, the one that fits them best.",
    },
  };
  const SAY_ANY = {
    title: "How the map was made", name: "All answers together", final: "make this map.", source: "from the noise",
    unclear: "not told apart from noise", key: "lost in noise", fade: "Fade cells lost in noise", opening: "Every count carries random noise, drawn once.",
    unit: Object.hasOwn(METHODS, method) ? ["cell", "cells"] : ["entry", "entries"],
    made: () => `The map was made in ${inRounds}. ${each} ${asks} about their records, and added up the answers with noise. The map is made of the noisy sums alone.`,
    sizes: () => "A cell that has been divided in part stands for what its finer cells leave over.",
    known: (layer, counts) => parallel && !layer.combined
      ? `the noise of each ${counts} is ${typically(layer)}± ${whole(layer.margin)} users at 95%, beside the chance of who was asked`
      : `each ${counts} is ${typically(layer)}known to ± ${whole(layer.margin)} users at 95%`,
    dropped: () => null,
    noise: () => {
      const where = `In the ${coarsened ? "map as it is shown here" : "final map"} it is ${typically(last)}± ${whole(last.margin)} users at 95%`;
      if (last.deviations) return `${where}. The noise differs from cell to cell: the map tells each cell's own.`;
      return `${where}: of a hundred cells, about ninety-five are off by less. The noise is the same ${oneSize && method !== "adaptive" ? "in every cell" : "for a small cell and a large one"}, so crowded places are known well and quiet places poorly.`;
    },
    lost: (cells, all) => `${whole(cells)} of the ${whole(all)} cells are lost in noise: they may hold a few users or none. The map hatches them.${method === "adaptive" || last.count.some((count) => count < 0) ? " Counts below zero are noise too; they are left as they came, because raising them to zero would tilt every total upward." : ""}`,
  };
  // Where the counts are a posterior's means. What the method says of its last step does not hold then.
  const POSTERIOR = {
    name: SAY_ANY.name, final: SAY_ANY.final, dropped: SAY_ANY.dropped, known: SAY_ANY.known,
    source: "from the noise and from what the answers leave open", unclear: "perhaps nobody", key: "may be empty", fade: "Fade cells that may be empty",
    opening: "The answers carry random noise, drawn once. The map is what they make likely.",
    noise: () => `A count is the average over all maps that could have led to these answers: it is never below zero, and where they say little it follows its surroundings. Its margin is what they leave open, the noise and more: ${last.deviations ? "it differs from cell to cell, the map tells each cell's own, and a typical one is" : "it is"} ± ${last.margin < 1 ? significant(last.margin, 2) : whole(last.margin)} users at 95%.`,
    lost: (cells, all) => `${whole(cells)} of the ${whole(all)} cells may be empty: their margin reaches down to nobody. The map hatches them. Several cells together are known better than each alone.`,
  };
  const SAY = { ...SAY_ANY, ...among(METHODS, method, {}), ...(last.posterior ? POSTERIOR : {}) };
  if (["adaptive", "emd"].includes(method)) SAY.title = "How the map sharpened";
  // A release that this one began with: its id, or "" where it is not named; null without any.
  const warm = (() => {
    const told = [get("privacy.warm_start"), parameter("warm_start")].filter((one) => one !== null && one !== "");
    if (!told.length) return null;
    const facts = told.find((one) => typeof one === "object") ?? {};
    return { id: typeof facts.release_id === "string" ? facts.release_id : "", epsilon: isNumber(facts.epsilon) ? facts.epsilon : null };
  })();
  const warmWords = () => `It began with an earlier release${warm.id ? `, ${warm.id},` : ""} which said where to look closely; nobody's data were asked for that. The earlier release had a budget of its own${warm.epsilon === null ? "" : `, ε = ${significant(warm.epsilon)}`}: for a user whose data are in both, the two add up.`;

  const typically = (layer) => (layer.combined || layer.deviations ? "typically " : "");
  const asked = (n, write = whole) => `${write(n)} ${SAY.unit[n === 1 ? 0 : 1]}`;

  const groups = () => plural(rounds[rounds.length - 1].shards ?? last.shards, "group");
  const NOISE = {
    shard: () => `Users answered in ${groups()}. A group's sum has its noise in it before anyone sees it, and a group in which too many fell silent is thrown away unread.`,
    client: () => `Users answered in ${groups()}. Every phone adds its share of the noise to its answer, so a group's sum has noise in it before anyone sees it, and a group in which too many fell silent is thrown away unread.`,
    central: () => "A trusted server saw the exact sums of the answers, and added noise to each sum once. Nothing was hidden from that server: there was no secure aggregation.",
  };
  const noiseWords = () => among(NOISE, parameter("method") === null && noise === "client" ? "shard" : noise, NOISE.shard)();
