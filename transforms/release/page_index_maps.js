// Maps of single nights: loaded when they are wanted, by a script each, since a page on a disk may load nothing else.
// Pixels are in the quadtree's order throughout (page_index.map_file), so that every tree cell is one run of them.

  const chosen = { a: null, b: null, shown: "b", unit: "points" }; // nights or null; which of them the night's map shows
  const received = new Map(); // by date, what a map file has handed over
  window.sfumatoMap = (map) => received.set(map.date, map);
  const MOST_KEPT = 24; // maps in memory, some 600 kB each
  const loading = new Map(); // by date, promises

  /** The map of a night. Rejects with words for the reader. */
  function load(night) {
    const known = loading.get(night.date);
    if (known) return known;
    const wanted = new Promise((resolve, reject) => {
      const script = h("script", { src: night.map });
      const end = (act) => () => {
        script.remove();
        try { resolve(act()); } catch (error) { reject(error); }
      };
      script.addEventListener("load", end(() => unpack(night)));
      script.addEventListener("error", end(() => { throw new Error(`${night.map} could not be loaded. Was it copied along with this page?`); }));
      document.head.append(script);
    });
    loading.set(night.date, wanted);
    wanted.catch(() => loading.delete(night.date)); // asked for again, it is tried again
    if (loading.size > MOST_KEPT) loading.delete(loading.keys().next().value);
    return wanted;
  }

  function unpack(night) {
    const map = received.get(night.date);
    received.delete(night.date);
    if (!map) throw new Error(`${night.map} holds no map of ${night.date}. It is damaged, or of another release.`);
    if (map.format !== data.format) throw new Error(`${night.map} was written by another version of Sfumato than this page.`);
    try {
      return decoded(map);
    } catch {
      throw new Error(`${night.map} is damaged.`);
    }
  }
  /** The rasters of a map file; it throws where they do not fit. */
  function decoded(map) {
    const numbers = (Kind, text) => new Kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
    const bits = Math.log2(map.side);
    const share = Float64Array.from(numbers(Uint16Array, map.share), (root) => map.most * (root / 65535) ** 2);
    const runs = numbers(Uint16Array, map.runs);
    const [runLevel, runVariance] = [numbers(Uint8Array, map.level), numbers(Float32Array, map.variance)];
    const level = new Uint8Array(4 ** bits);
    const variance = new Float64Array(4 ** bits);
    let at = 0;
    runs.forEach((less, i) => {
      level.fill(runLevel[i], at, at + less + 1);
      variance.fill(runVariance[i], at, at + less + 1);
      at += less + 1;
    });
    if (at !== 4 ** bits || share.length !== at || runLevel.length !== runs.length || runVariance.length !== runs.length) throw new RangeError("pixels");
    return { bits, share, level, variance, region: map.region, top: map.top };
  }

  // ---------------------------------------------------------------- the ground

  /** Place of pixel z in a raster by rows from the north-west: uint32[4^bits]. The x bit stands before the y bit. */
  const orders = [];
  function orderOf(bits) {
    if (orders[bits]) return orders[bits];
    const order = new Uint32Array(4 ** bits);
    for (let z = 0; z < order.length; z++) {
      const [x, y] = unravel(z, bits);
      order[z] = (y << bits) + x;
    }
    return (orders[bits] = order);
  }
  function unravel(code, bits) {
    let [x, y] = [0, 0];
    for (let k = 0; k < bits; k++) {
      y |= ((code >> (2 * k)) & 1) << k;
      x |= ((code >> (2 * k + 1)) & 1) << k;
    }
    return [x, y];
  }
  /** The number of a pixel in the quadtree's order. */
  function ravel(x, y, bits) {
    let code = 0;
    for (let k = 0; k < bits; k++) code |= (((y >> k) & 1) << (2 * k)) | (((x >> k) & 1) << (2 * k + 1));
    return code;
  }
  /** Square kilometres of a cell in row y of a level, on the sphere. */
  function squareKilometres(region, level, y) {
    const side = 2 ** level;
    const radius = (METRES_PER_DEGREE * 180) / Math.PI / 1000;
    const sine = (row) => Math.sin(((region.north - (row / side) * (region.north - region.south)) * Math.PI) / 180);
    return Math.max((radius ** 2 * (((region.east - region.west) * Math.PI) / 180) * (sine(y) - sine(y + 1))) / side, 1e-12);
  }

  // ---------------------------------------------------------------- the difference of two

  /** The map with its pixels added up to 4^bits; the same where it has no more. */
  function coarser(map, bits) {
    if (map.bits <= bits) return map;
    const wide = 4 ** (map.bits - bits);
    const added = (values) => {
      const sums = new Float64Array(4 ** bits);
      values.forEach((value, z) => { sums[Math.floor(z / wide)] += value; });
      return sums;
    };
    const level = new Uint8Array(4 ** bits).fill(bits);
    map.level.forEach((one, z) => { level[Math.floor(z / wide)] = Math.min(level[Math.floor(z / wide)], one); });
    return { ...map, bits, share: added(map.share), variance: added(map.variance), level };
  }

  /**
   * Blocks of pixels that are whole cells of both maps: the finest of which both say something. Inside a cell nothing was
   * measured, so a map that has finer cells there differs from one that has not by its making alone.
   *
   * Block i: pixels start[i] to start[i + 1] in the quadtree's order, a cell (x[i], y[i]) of level[i]. `before` and
   * `after` are its shares of the users in a and b, `difference` what it gained, `deviation` the standard deviation of
   * the noise in that. `of` names the block of each pixel.
   */
  function compare(one, two) {
    const bits = Math.min(one.bits, two.bits);
    const [a, b] = [coarser(one, bits), coarser(two, bits)];
    const least = [];
    least[bits] = a.level.map((level, z) => Math.min(level, b.level[z]));
    for (let k = bits - 1; k >= 0; k--) least[k] = Uint8Array.from({ length: 4 ** k }, (_, i) => Math.min(...least[k + 1].subarray(4 * i, 4 * i + 4)));
    const blocks = { bits, region: a.region, start: [], level: [], x: [], y: [], before: [], after: [], difference: [], deviation: [], of: new Uint32Array(4 ** bits) };
    for (let z = 0; z < 4 ** bits;) {
      let level = 0;
      while (least[level][z >> (2 * (bits - level))] > level) level += 1;
      const end = z + 4 ** (bits - level);
      const sum = (values) => {
        let total = 0;
        for (let i = z; i < end; i++) total += values[i];
        return total;
      };
      const [x, y] = unravel(z >> (2 * (bits - level)), level);
      const [before, after] = [sum(a.share), sum(b.share)];
      blocks.of.fill(blocks.start.length, z, end);
      for (const [name, value] of Object.entries({ start: z, level, x, y, before, after, difference: after - before, deviation: Math.sqrt(sum(a.variance) + sum(b.variance)) })) blocks[name].push(value);
      z = end;
    }
    blocks.n = blocks.start.length;
    blocks.lost = blocks.difference.map((value, i) => Math.abs(value) <= BEYOND * blocks.deviation[i]);
    return blocks;
  }
  const BEYOND = 2; // standard deviations: what differs by less is within the noise
  const sameRegion = (a, b) => Object.keys(a.region).every((side) => a.region[side] === b.region[side]);
