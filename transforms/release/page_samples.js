// Words on sample and threshold: what is promised, what may be missing, how it was made. For items, cells and quantiles.
// A page of this kind names its things: NOUNS = { page, one, many, article, level, finest, rounds }, and
  // `whose`, the users that results.estimated_users counts.

  const privacy = get("privacy", {});
  const epsilon = isNumber(privacy.epsilon) ? privacy.epsilon : null;
  const delta = isNumber(privacy.delta) ? privacy.delta : null;
  const hiddenCount = get("results.hidden_count");
  const estimatedUsers = get("results.estimated_users");
  const population = get("privacy.population", {});
  const rounds = listOf("rounds").filter((round) => round && typeof round === "object");
  const draws = [...new Set(rounds.map((round) => `${round.sampling_rate} ${round.threshold}`))];
  const top = isNumber(get("parameters.top")) ? get("parameters.top") : null; // so many of the last level are shown
  const contact = get("privacy.contact", {});
  const Z = 1.96; // standard deviations on each side that hold 95% of a normal law

  /** A chance as a share, with as many digits as it needs. */
  const chance = (share) => (isNumber(share) ? `${significant(100 * share)}%` : "an unknown chance");
  /** A chance as 1 in so many, rounded towards the likelier. */
  const oneIn = (share) => {
    const unit = 10 ** Math.max(Math.floor(Math.log10(1 / share)) - 2, 0);
    return `1 in ${large(Math.max(Math.floor(1 / share / unit + 1e-6) * unit, 1))}`;
  };
  const missing = () => (isNumber(hiddenCount) ? `at most about ${whole(hiddenCount)} users, or nobody` : "too few users, or nobody");
  const missingLong = (one) => (isNumber(hiddenCount)
    ? `${one} that is not shown has at most ${whole(hiddenCount)} users, with 99% confidence, or nobody at all. A user counts for one of her records, drawn at random: for users with many records, what is rare among them counts less.`
    : `${one} that is not shown may have users, but the manifest does not say how many at most.`);

  const pledge = () => (epsilon === null ? "The manifest names no privacy budget, so nothing can be promised."
    : promised(NOUNS.page, epsilon, delta > 0 ? `, but for a chance of ${oneIn(delta)}` : ""));

  /** What was done in a round, in one sentence: {sampling_rate, threshold}. */
  const drawWords = (round) => `Each user was drawn with probability ${chance(round.sampling_rate)}; what fewer than ${whole(round.threshold)} of the drawn users share was dropped; nothing was added.`;
  /** What `--top N` did, in one sentence, or "". */
  const topWords = () => (top === null ? "" : top === 1 ? "Only the one with the most users is shown." : `Only the ${whole(top)} with the most users are shown.`);
  const headline = () => {
    if (isNumber(estimatedUsers) && NOUNS.whose) return estimatedUsers > 0 ? `About ${large(estimatedUsers)} users ${NOUNS.whose}` : "Nothing was published";
    const users = isNumber(estimatedUsers) ? estimatedUsers : population.users;
    return isNumber(users) ? `About ${large(users)} users${unsafe || NOUNS.whose ? "" : ", no one in particular"}` : $("heading").textContent;
  };
  const budgetChip = () => ["Privacy budget", `ε = ${epsilon === null ? "unknown" : significant(epsilon)}${delta === null ? "" : `, δ = ${tiny(delta)}`}`];
  const hiddenChip = () => (isNumber(hiddenCount) ? ["May be hidden", `up to ${whole(hiddenCount)} users`] : null);

  function showPledge() {
    $("pledge").textContent = unsafe ? `Made with a demonstration seed, this ${NOUNS.page} protects no one.` : pledge();
    for (const element of document.querySelectorAll("[data-missing]")) element.textContent = missingLong(element.dataset.missing);
  }

  const guaranteed = (e, d) => `ε = ${significant(e)}, δ = ${tiny(d)}`;

  function promise() {
    const { source } = get("privacy.randomness", {});
    const alone = get("privacy.round_guarantee");
    return section(`What this ${NOUNS.page} promises`,
      unsafe && h("p", { class: "lead" }, "This release keeps no one's secret: its users were drawn by a seed that is known. With a secret key, the following would hold."),
      h("p", { class: "lead" }, pledge()),
      h("div", { class: "columns" }, epsilon !== null && epsilon <= VAGUE && beliefPicture(epsilon, (high) =>
        `Suppose someone thinks it an even bet that you are in the data. However they study this ${NOUNS.page}, and whatever else they know, they cannot end up more than ${high} sure that you are in it, nor more than ${high} sure that you are not${delta > 0 ? `. With a chance of about ${oneIn(delta)} they can` : ""}.`), facts([
        ["Who is protected", `Each ${get("privacy.unit", "user")} as a whole, not just a single record`],
        ["What is compared", privacy.adjacency],
        ["What each adds", privacy.contribution_bound],
        ["Privacy budget", epsilon === null ? null : `ε = ${significant(epsilon)}${epsilon <= VAGUE ? ": the factor above is e to the power ε" : ""}`],
        ["Chance of failure", delta === null ? null : delta > 0 ? `δ = ${tiny(delta)}: an unlucky draw can give someone away, when ${NOUNS.article} passes the threshold only because of them. δ bounds the chance of that: ${oneIn(delta)}.` : "none: δ = 0"],
        ["What protects", privacy.mechanism],
        ["Over all rounds", rounds.length > 1 && epsilon !== null && delta !== null ? `all rounds together: ${guaranteed(epsilon, delta)}${privacy.composition ? ` (by ${privacy.composition})` : ""}${alone && isNumber(alone.epsilon) && isNumber(alone.delta) ? `. One round alone: ${guaranteed(alone.epsilon, alone.delta)}; this is part of the above, nothing has to be added up or multiplied` : ""}` : null],
        ["Randomness", source && randomness(source)],
        ["Number of users", isNumber(population.users) ? `${whole(population.users)}, ${population.source === "given" ? "given to the job, not counted" : `source: ${population.source ?? "unknown"}`}` : "unknown to the job; the guarantee does not depend on it"],
      ])));
  }

  /** How the rounds went: paragraphs for one round, for several alike, or for several that differ. */
  function making() {
    if (!rounds.length) return [paragraph("The manifest does not say how the users were drawn.")];
    const [first] = rounds;
    const [scaled, single] = [first.sampling_rate > 0 ? 1 / first.sampling_rate : NaN, draws.length === 1];
    return [
      single ? paragraph(drawWords(first)) : paragraph("Each user was drawn with the probability of the round, as in the table below; what fewer drawn users than its threshold share was dropped; nothing was added."),
      paragraph(`What is shown was really seen: nothing is invented, and rare things vanish. ${single ? `Each estimate is the number of drawn users times ${significant(scaled)}, that is, 1 / ${significant(first.sampling_rate)}.` : "Each estimate is the number of drawn users divided by the chance of being drawn."}`),
      top !== null && paragraph(`${topWords()} This holds for the last level: what is absent there may have been dropped by the threshold, or have fewer users than those shown.`),
      contact.kind === "limited" && isNumber(contact.contacted_users) && paragraph(`${rounds.length > 1 ? "Each round" : "The round"} asked about ${plural(contact.contacted_users, "user")}, chosen at random; the others were not contacted.`),
      rounds.length > 1 && paragraph(`It took ${plural(rounds.length, "round")}, each with a draw of its own. ${NOUNS.rounds}`),
    ];
  }

  function roundTable() {
    const heads = ["Round", ...(NOUNS.level ? [capital(NOUNS.level)] : []), "Chance of being drawn", "Threshold, drawn users", "Least estimate shown", "Published"];
    const rows = rounds.map((round, i) => [whole((round.index ?? i) + 1), ...(NOUNS.level ? [round.level ? (NOUNS.levelText ?? whole)(round.level) : NOUNS.finest] : []), chance(round.sampling_rate),
      whole(round.threshold), round.sampling_rate > 0 ? whole(round.threshold / round.sampling_rate) : "unknown", whole(round.published)]);
    return rounds.length ? section("Round by round", tableOf("Table of rounds", heads, rows)) : null;
  }

  /** The report of a page of this kind; `reading` holds paragraphs on how to read it, `answers` sections of tables. */
  function showSampleReport(reading, identity = {}, answers = []) {
    showReport([
      ...answers,
      promise(),
      h("div", { class: "columns" }, section("How to read it", ...reading), section("How it was made", ...making())),
      roundTable(),
    ].filter(Boolean), identity);
  }
