// Words on bit pushing: what a client gave, what is promised, how it was made.

  const privacy = get("privacy", {});
  const meter = get("privacy.meter", {});
  const form = get("fixed_point", {});
  const { column } = data;
  const collected = get("privacy.collector.epsilon"); // of what a client sends, for whoever collects it
  const local = privacy.trust === "local" && isNumber(collected);
  const epsilon = local ? collected : null;
  const released = local && isNumber(privacy.epsilon) ? privacy.epsilon : null; // of this page, for whoever reads it
  const unprotected = privacy.trust === "none";
  const unit = get("privacy.unit", "user");
  const bitCount = isNumber(meter.bits_per_client) ? meter.bits_per_client : null;
  const bitWords = (n) => (n === 1 ? "one bit" : plural(n, "bit"));
  const gave = bitCount === null ? "some bits" : bitWords(bitCount);
  const clients = get("results.clients", data.statistics[0]?.clients);
  const roundsMade = listOf("results.rounds").filter((one) => one && typeof one === "object");
  const joint = get("privacy.groups"); // what protects which group a client is in
  /** A chance, rounded up: no bound may read better than it is. */
  const atMost = (share) => `${rounded(ceiling(100 * share, share < 0.1 ? 2 : 1), 2)}%`;
  const about = (share) => `${significant(100 * share)}%`;
  /** A share of clients, which noise may lead outside 0% to 100%, in digits that its margin lets matter. */
  const shareWords = (share, margin) => `${minus((100 * share).toFixed(margin < 0.002 ? 2 : 1))}%`.replace(/^\u2212(?=0(\.0+)?%$)/, "");

  function pledge() {
    if (unsafe) return "Made with a demonstration seed, this page protects no one.";
    if (unprotected) return `Each client gave ${gave}, as ${bitCount === 1 ? "it is" : "they are"}: no differential privacy. Whoever sees a client's report knows ${bitCount === 1 ? "that bit" : "those bits"}, and what follows from ${bitCount === 1 ? "it" : "them"}.`;
    if (!local) return "The manifest names no privacy guarantee, so nothing can be promised.";
    return epsilon > VAGUE ? `A local privacy budget of \u03b5 = ${significant(epsilon)} promises next to nothing: what a client sends may give it away.`
      : `What a client sends could nearly as well have come from any other value: whoever sees it can change no guess's odds by more than a factor of ${factorUp(epsilon)}.`;
  }
  function budgetChip() {
    if (unprotected) return ["Differential privacy", "none"];
    return local ? ["Privacy budget", released === epsilon || released === null ? `\u03b5 = ${significant(epsilon)}, local and for this page` : `\u03b5 = ${significant(released)} for this page; local \u03b5 = ${significant(epsilon)}`] : null;
  }

  function promise() {
    const source = get("privacy.randomness.source");
    return section("What this page promises",
      unsafe && h("p", { class: "lead" }, "This release keeps no one's secret: its draws came from a seed that is known. With a secret key, the following would hold."),
      h("p", { class: "lead" }, unsafe ? gaveWords() : pledge()),
      h("div", { class: "columns" }, local && epsilon <= VAGUE && beliefPicture(epsilon, (high) =>
        `Suppose someone thinks it an even bet which of two values is yours. However they study what you sent, and whatever else they know, they cannot end up more than ${high} sure.`, ["surely the one", "surely the other"]), facts([
        ["Who is protected", local ? `Each ${unit}: nothing that is made of the reports can tell more than they do` : unprotected ? `Each ${unit}, by how little is asked: ${gave}, chosen by the key` : null],
        ["Against whom", local ? "Whoever sees the reports, every single one" : null],
        ["From whoever reads this page", released === null ? null : `\u03b5 = ${significant(released)}: ${privacy.adjacency}`],
        ["From whoever collects the reports", local ? `\u03b5 = ${significant(epsilon)}: ${get("privacy.collector.adjacency", "")}` : null],
        ["What each adds", privacy.contribution_bound],
        ["Local privacy budget", local ? `\u03b5 = ${significant(epsilon)} a client${isNumber(meter.epsilon_per_bit) && bitCount > 1 ? `, \u03b5 = ${significant(meter.epsilon_per_bit)} a bit` : ""}` : null],
        ["Chance of failure", local ? (privacy.delta > 0 ? `\u03b4 = ${tiny(privacy.delta)}` : "none: \u03b4 = 0") : null],
        ["What protects", privacy.mechanism],
        ["Noise on every count", privacy.noise_stddev > 0 ? `${significant(privacy.noise_stddev)} reports (std. dev.)` : null],
        ["Which group a client is in", joint && isNumber(joint.epsilon) ? `protected by the noise on every count: \u03b5 = ${significant(joint.epsilon)}; whoever collects the reports knows it` : null],
        ["Randomness", source && randomness(source)],
      ])));
  }
  const gaveWords = () => (unprotected ? `Each client gives ${gave}, as ${bitCount === 1 ? "it is" : "they are"}: no differential privacy.` : local ? `Each client gives ${gave}, randomised with \u03b5 = ${significant(epsilon)}.` : `Each client gives ${gave}.`);

  // ---------------------------------------------------------------- the meter

  /** The panel that says what clients disclosed: words, a strip of the chances that a bit was read, and facts. */
  function showMeter() {
    const [first] = data.bits;
    $("meter").hidden = !first && bitCount === null;
    const protectedBy = local ? `, randomised with \u03b5\u00a0=\u00a0${significant(epsilon)}${bitCount > 1 ? " in all" : ""}` : unprotected ? `, as ${bitCount === 1 ? "it is" : "they are"}: no differential privacy` : "";
    $("meter-words").replaceChildren(h("b", null, capital(gave)), data.bits.length > 1 ? ` of its value, or of a number made of it${protectedBy}.` : isNumber(form.bits) ? ` of a value\u2019s ${plural(form.bits, "bit")}${form.signed === "split" ? " and sign" : ""}${protectedBy}.` : `${protectedBy}.`);
    const most = first ? Math.max(...first.read_probability.filter(isNumber), 1e-12) : 1;
    if (first) {
      $("strip").replaceChildren(...first.read_probability.map((chance) => {
        const part = h("i");
        part.style.opacity = isNumber(chance) ? (0.08 + 0.92 * Math.sqrt(chance / most)).toFixed(3) : "0.08";
        return part;
      }));
      $("strip-ends").replaceChildren(h("span", null, first.place[0] ?? ""), h("span", null, "chance of being read"), h("span", null, first.place[first.place.length - 1] ?? ""));
    }
    $("meter-facts").replaceWith(Object.assign(facts([
      ["In all", isNumber(bitCount) ? `${bitWords(bitCount)}${isNumber(meter.cap) ? `, never more than ${whole(meter.cap)}` : ""}` : null],
      ["Of one value", isNumber(meter.bits_per_value) ? (meter.bits_per_value === 1 ? "one bit" : `${whole(meter.bits_per_value)} bits`) : null],
      ["Worth, as bits told truly", isNumber(meter.expected_private_bits) && meter.expected_private_bits < bitCount ? `${significant(ceiling(meter.expected_private_bits, 3))}: the rest is chance` : null],
      ["A given bit was read", isNumber(meter.highest_read_probability) ? `with a chance of at most ${atMost(meter.highest_read_probability)}` : null],
      ["It arrives true", isNumber(meter.truth_probability) ? `with a chance of ${atMost(meter.truth_probability)}` : unprotected ? "always" : null],
      ["Local \u03b5", isNumber(meter.epsilon_per_client) ? `${significant(meter.epsilon_per_client)} a client${isNumber(meter.epsilon_per_bit) ? `, ${significant(meter.epsilon_per_bit)} a bit` : ""}` : null],
    ]), { id: "meter-facts" }));
  }

  // ---------------------------------------------------------------- how to read it, how it was made

  function reading() {
    const range = isNumber(form.low) && isNumber(form.high) ? `${significant(form.low, 15)} to ${significant(form.high, 15)}` : null;
    return section("How to read it",
      paragraph("A value is a sum of place values, one for each bit that is set. So the share of clients whose bit is set, times the bit's place value, is what the bit adds to the mean; all bits together make the mean", isNumber(form.offset) && form.offset ? `, less ${significant(form.offset, 15)}, which was added to every value first.` : "."),
      paragraph("An interval at 95% holds what it would be without chance at least about 95 times in 100. Chance is which clients were asked about which bit", local ? ", the randomisation of every answer, and the noise on every count." : ".", " Where high bits do not stand out from chance, the interval reaches as far as they may add, if larger values are rarer from bit to bit; a few values far above all others are not in it."),
      data.groups.length > 0 && paragraph(`Values by ${data.layers ? "cell" : "group"} are drawn towards everybody's, the more the less is known of them: the highest of many noisy numbers is high by chance for the most part. The tables beside this page have them as they were measured.`),
      local && paragraph("Because answers are randomised, the share of a bit can come out below 0% or above 100%. That is noise; it is left in, so that sums are right on average."),
      data.bits.some((one) => one.squashed.some(Boolean)) && paragraph("Grey bits were squashed: their share does not stand out from chance, so they are probably empty, and count no more than the chance, below a half, that they are in use. Should such a bit be set in a few values, the result may be off by what it would add."),
      range && paragraph(`Values have steps of ${significant(form.step ?? 1, 15)} and lie in ${range}; others were moved to the nearest end.`),
      data.groups.length > 0 && isNumber(joint?.min_group) && paragraph(data.layers ? `Cells of fewer than ${whole(joint.min_group)} clients are left dark. How many clients a cell has is an estimate too.` : `Groups of fewer than ${whole(joint.min_group)} clients are part of \u201cother\u201d. How many clients a group has is an estimate too.`));
  }
  function making() {
    const learnt = roundsMade.length && roundsMade.every((one) => one.round !== 1); // from an earlier release
    const method = learnt && get("method") === "adaptive" ? "An earlier release of the same column said which bits are set in some values and not in others; those were asked about most." : { adaptive: "Bits were asked about in two rounds. In the first, by their place value. From the answers, the second learnt which bits are set in some values and not in others, and asked about those most.", weighted: "Bits were asked about in one round: the greater a bit's place value, the more clients were asked about it." }[get("method")];
    return section("How it was made",
      method && paragraph(method),
      paragraph(`Which client gives which bit was drawn by the key, not by the client, so nobody can choose which bit to tell.${local ? " Each report was then turned round with a known chance, which the estimate takes into account." : ""}`));
  }
  function roundTable() {
    if (!roundsMade.length) return null;
    const rows = roundsMade.map((one) => [data.bits.find((set) => set.quantity === one.quantity)?.title ?? String(one.quantity ?? "value"), whole(one.round), whole(one.clients), whole(one.reports)]);
    return section("Round by round", tableOf("Table of rounds", ["Bits of", "Round", "Clients", "Reports"], rows));
  }
  function statisticTable() {
    const rows = data.statistics.map((one) => [one.title, one.value, one.low, one.high, one.stddev, whole(one.clients)]);
    return rows.length ? section("The statistics", tableOf("Table of statistics", ["Statistic", "Value", "At 95%, from", "to", "Std. dev.", "Clients"], rows)) : null;
  }
