// Rates: the share of a cell's users that belong to a category, with its interval: scale and words.

  const rated = layers.findLast((layer) => layer.rates) ?? null; // its categories are every layer's
  const categories = rated ? rated.rates.names : [];
  const given = get("auxiliary", get("parameters.auxiliary"));
  const column = typeof given === "string" ? given : typeof given?.column === "string" ? given.column : null;
  const isFlag = categories.every((name) => ["false", "true"].includes(name));

  const nameOf = (category) => {
    const name = categories[category];
    return isFlag && column !== null ? `${name === "true" ? "" : "not "}${column}` : name;
  };
  /** What a category's rate is. */
  function shareOf(category) {
    return `Share of users, ${isFlag || column === null ? nameOf(category) : `${column} = ${nameOf(category)}`}`;
  }

  /** Percentages with as many decimals as a difference of `width` asks for. */
  const decimals = (width) => clamp(Math.ceil(Math.log10(0.03 / Math.max(width, 1e-9))), 0, 6);
  const inPercent = (share, digits) => `${(100 * share).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}%`;

  /** A rate in words, 12% (9% to 15%), its ends rounded outward; null where it is unknown. */
  function rateWords(layer, i, category) {
    const [rate, low, high] = ["rate", "low", "high"].map((name) => layer.rates[name][category][i]);
    return rate === null ? null : intervalWords(rate, low, high);
  }
  function intervalWords(rate, low, high) {
    const digits = decimals(high - low);
    const unit = 10 ** (digits + 2);
    return `${inPercent(rate, digits)} (${inPercent(Math.floor(low * unit + 1e-6) / unit, digits)} to ${inPercent(Math.ceil(high * unit - 1e-6) / unit, digits)})`;
  }
  const RATE_LEVEL = "95% interval of this cell alone, includes sampling and noise";
  const NO_RATE = "too few users to tell";

  const scaleOf = (category) => data.rate_scales[category];
  const rateShade = (scale, rate) => clamp((rate - scale.low) / (scale.high - scale.low), 0, 1);
  const isWide = (layer, i, category) => layer.rates.high[category][i] - layer.rates.low[category][i] > scaleOf(category).wide;

  /** Round rates and where they stand on a category's scale, as [share, text], both ends among them. */
  function rateTicks(category, room) {
    const { low, high } = scaleOf(category);
    const step = niceStep((high - low) * Math.max(room, 0.2));
    const digits = clamp(Math.ceil(-Math.log10(step) - 2 - 1e-9), 0, 6);
    const beyond = (sign, test) => (rated.rates.rate[category].some((rate) => rate !== null && test(rate)) ? `${sign} ` : "");
    const ticks = [[0, `${beyond("≤", (rate) => rate < low)}${inPercent(low, digits)}`]];
    for (let n = Math.floor(low / step + 1e-9) + 1; n * step < high; n++) {
      const share = rateShade({ low, high }, n * step);
      if (share > 1.2 * room && share < 1 - 1.5 * room) ticks.push([share, inPercent(n * step, digits)]);
    }
    return [...ticks, [1, `${beyond("≥", (rate) => rate > high)}${inPercent(high, digits)}`]];
  }

  const NONE_HIGHER = "No cell's rate is above the average beyond doubt: chance explains the differences.";
