/**
 * Field128 of the VDAF draft, p = 2^128 - 7 * 2^66 + 1, as transforms/split/field128.py computes it.
 *
 * An element is six limbs of 22 bits in a Float64Array, least significant first, balanced around 0; an array of n
 * elements is a Float64Array of 6 n. Doubles hold integers exactly up to 2^53, and because 66 = 3 * 22, a limb of
 * weight 2^132 = 112 * 2^66 - 16 (mod p) folds into limbs 3 and 0. No branch and no index depends on an element.
 * BigInt would be shorter, but its work depends on its value: a product with 0 is faster than one with 1.
 */

export type Elements = Float64Array;

export const LIMBS = 6;
export const ENCODED_SIZE = 16;
export const MODULUS = 2n ** 128n - 7n * 2n ** 66n + 1n;
const BITS = 22;
const MASK = (1 << BITS) - 1;
const BASE = 1 << BITS;
const TOP_BITS = 128 - (LIMBS - 1) * BITS; // of the last limb
const TOP_MASK = (1 << TOP_BITS) - 1;
const ROUND = 1.5 * 2 ** 52; // adding and subtracting it rounds a double of less than 2^51 to a whole number
const GENERATOR_BITS = 66; // the generator's order is 2^66
const HIGH_WORDS = [0xffffffe4, 0xffffffff]; // the modulus is 1 and these, in words of 32 bits from bit 64
// Added before an element is encoded: a multiple of the modulus that makes every sum of balanced limbs positive.
const POSITIVE = Array.from({ length: LIMBS }, (_, limb) => Number(((16n * MODULUS) >> BigInt(BITS * limb)) & (limb < LIMBS - 1 ? BigInt(MASK) : -1n)));

export const zeros = (count: number): Elements => new Float64Array(LIMBS * count);

/** Returns public numbers as elements. */
export function fromNumbers(values: readonly bigint[]): Elements {
  const words = new Uint32Array(4 * values.length);
  values.forEach((value, i) => {
    const canonical = ((value % MODULUS) + MODULUS) % MODULUS;
    for (let word = 0; word < 4; word++) words[4 * i + word] = Number((canonical >> BigInt(32 * word)) & 0xffffffffn);
  });
  return fromWords(words);
}

/** Returns elements that canonical words, four of 32 bits each, encode. Words are little-endian, as all phones are. */
export function fromWords(words: Uint32Array): Elements {
  const elements = zeros(words.length / 4);
  for (let i = 0, w = 0; w < words.length; i += LIMBS, w += 4) {
    const [a, b, c, d] = [words[w], words[w + 1], words[w + 2], words[w + 3]];
    elements[i] = a & MASK;
    elements[i + 1] = (a >>> 22) | ((b & 0xfff) << 10);
    elements[i + 2] = (b >>> 12) | ((c & 3) << 20);
    elements[i + 3] = (c >>> 2) & MASK;
    elements[i + 4] = (c >>> 24) | ((d & 0x3fff) << 8);
    elements[i + 5] = d >>> 14;
    settle(elements, i);
  }
  return elements;
}

/** Returns whether four words from an index encode an element: whether they are below the modulus. */
export function isCanonical(words: Uint32Array, w: number): boolean {
  const isBelow = words[w + 3] < HIGH_WORDS[1] || words[w + 2] < HIGH_WORDS[0];
  return isBelow || (words[w + 2] === HIGH_WORDS[0] && words[w] === 0 && words[w + 1] === 0);
}

/** Returns the canonical encoding of elements, 16 bytes each. */
export function toBytes(elements: Elements): Uint8Array {
  const count = elements.length / LIMBS;
  const bytes = new Uint8Array(ENCODED_SIZE * count);
  const view = new DataView(bytes.buffer);
  const limbs = new Int32Array(LIMBS);
  const reduced = new Int32Array(LIMBS);
  for (let i = 0; i < count; i++) {
    for (let limb = 0; limb < LIMBS; limb++) limbs[limb] = elements[LIMBS * i + limb] + POSITIVE[limb];
    carryUp(limbs);
    const over = limbs[5] >> TOP_BITS; // 2^128 = 7 * 2^66 - 1
    limbs[5] &= TOP_MASK;
    limbs[3] += 7 * over;
    limbs[0] -= over;
    carryUp(limbs); // now below 2^128 + 2^74
    reduced.set(limbs); // subtracting the modulus is adding 7 * 2^66 - 1 modulo 2^128
    reduced[3] += 7;
    reduced[0] -= 1;
    carryUp(reduced);
    const isBeyond = -(reduced[5] >> TOP_BITS); // all bits, or none
    for (let limb = 0; limb < LIMBS; limb++) limbs[limb] ^= (limbs[limb] ^ reduced[limb]) & isBeyond;
    const at = ENCODED_SIZE * i;
    view.setUint32(at, limbs[0] | (limbs[1] << 22), true);
    view.setUint32(at + 4, (limbs[1] >>> 10) | (limbs[2] << 12), true);
    view.setUint32(at + 8, (limbs[2] >>> 20) | (limbs[3] << 2) | (limbs[4] << 24), true);
    view.setUint32(at + 12, (limbs[4] >>> 8) | (limbs[5] << 14), true);
  }
  return bytes;
}

function carryUp(limbs: Int32Array): void {
  for (let limb = 0; limb < LIMBS - 1; limb++) {
    limbs[limb + 1] += limbs[limb] >> BITS;
    limbs[limb] &= MASK;
  }
}

/** Balances the limbs of the element at an index, after a product or up to 2^22 additions and subtractions. */
export function settle(x: Elements, at: number): void {
  const c0 = carried(x[at]);
  const l1 = x[at + 1] + c0;
  const c1 = carried(l1);
  const l2 = x[at + 2] + c1;
  const c2 = carried(l2);
  const l3 = x[at + 3] + c2;
  const c3 = carried(l3);
  const l4 = x[at + 4] + c3;
  const c4 = carried(l4);
  const l5 = x[at + 5] + c4;
  const top = carried(l5);
  const low = x[at] - c0 * BASE - 16 * top;
  const middle = l3 - c3 * BASE + 112 * top;
  const fromLow = carried(low);
  const fromMiddle = carried(middle);
  x[at] = low - fromLow * BASE;
  x[at + 1] = l1 - c1 * BASE + fromLow;
  x[at + 2] = l2 - c2 * BASE;
  x[at + 3] = middle - fromMiddle * BASE;
  x[at + 4] = l4 - c4 * BASE + fromMiddle;
  x[at + 5] = l5 - top * BASE;
}

/** What exceeds half a limb, as a multiple of the next limb's unit. */
const carried = (limb: number): number => limb * (1 / BASE) + ROUND - ROUND;

/** Writes the product of a's and b's elements at the indices i and j into `out` at `at`; the arrays may be the same. */
export function multiply(out: Elements, at: number, a: Elements, i: number, b: Elements, j: number): void {
  const a0 = a[i], a1 = a[i + 1], a2 = a[i + 2], a3 = a[i + 3], a4 = a[i + 4], a5 = a[i + 5];
  const b0 = b[j], b1 = b[j + 1], b2 = b[j + 2], b3 = b[j + 3], b4 = b[j + 4], b5 = b[j + 5];
  const p10 = a5 * b5; // sums of products by weight; those above limb 5 fold into limbs three and six below
  const p9 = a4 * b5 + a5 * b4;
  const p8 = a3 * b5 + a4 * b4 + a5 * b3;
  const p7 = a2 * b5 + a3 * b4 + a4 * b3 + a5 * b2 + 112 * p10;
  const p6 = a1 * b5 + a2 * b4 + a3 * b3 + a4 * b2 + a5 * b1 + 112 * p9;
  const from7 = carried(p7);
  const from6 = carried(p6);
  const q7 = p7 - from7 * BASE + from6;
  const q6 = p6 - from6 * BASE;
  out[at] = a0 * b0 - 16 * q6;
  out[at + 1] = a0 * b1 + a1 * b0 - 16 * q7;
  out[at + 2] = a0 * b2 + a1 * b1 + a2 * b0 - 16 * p8 - 16 * from7;
  out[at + 3] = a0 * b3 + a1 * b2 + a2 * b1 + a3 * b0 - 16 * p9 + 112 * q6;
  out[at + 4] = a0 * b4 + a1 * b3 + a2 * b2 + a3 * b1 + a4 * b0 - 16 * p10 + 112 * q7;
  out[at + 5] = a0 * b5 + a1 * b4 + a2 * b3 + a3 * b2 + a4 * b1 + a5 * b0 + 112 * p8 + 112 * from7;
  settle(out, at);
}

/** Replaces elements by the differences to others. */
export function subtract(from: Elements, others: Elements): void {
  for (let i = 0; i < from.length; i++) from[i] -= others[i];
  for (let at = 0; at < from.length; at += LIMBS) settle(from, at);
}

/** Returns the powers 0 .. count - 1 of the principal root of unity of an order, a power of two. */
export function rootPowers(order: number, count: number): Elements {
  const step = power(7n, (MODULUS - 1n) >> BigInt(GENERATOR_BITS));
  const root = power(step, (1n << BigInt(GENERATOR_BITS)) / BigInt(order));
  const powers = [1n];
  while (powers.length < count) powers.push((powers[powers.length - 1] * root) % MODULUS);
  return fromNumbers(powers);
}

/** Returns a public number's power. */
function power(base: bigint, exponent: bigint): bigint {
  let found = 1n;
  for (let square = base, rest = exponent; rest; rest >>= 1n, square = (square * square) % MODULUS) if (rest & 1n) found = (found * square) % MODULUS;
  return found;
}

/**
 * Replaces values of polynomials at the roots of unity of an order by those at the odd roots of twice that order.
 *
 * A polynomial of degree below `order` is `order` elements of `values` from an index, in the order of the powers of
 * the root. The inverse transform leaves coefficients in the order of reversed bits, which the forward one expects.
 */
export class OddPoints {
  private readonly roots: Elements;
  private readonly inverses: Elements;
  private readonly twists: Elements; // powers of the root of twice the order, by reversed bits, divided by the order

  constructor(readonly order: number) {
    this.roots = rootPowers(order, Math.max(1, order / 2));
    const all = rootPowers(2 * order, 2 * order);
    this.inverses = zeros(Math.max(1, order / 2));
    this.twists = zeros(order);
    const inverse = fromNumbers([power(BigInt(order), MODULUS - 2n)]);
    for (let i = 0; i < order / 2; i++) this.inverses.set(element(all, (2 * order - 2 * i) % (2 * order)), LIMBS * i);
    for (let i = 0; i < order; i++) multiply(this.twists, LIMBS * i, all, LIMBS * reversed(i, order), inverse, 0);
  }

  move(values: Elements, first: number): void {
    const { order } = this;
    for (let half = order / 2; half >= 1; half /= 2) {
      for (let block = 0; block < order; block += 2 * half) {
        for (let i = 0; i < half; i++) {
          const a = first + LIMBS * (block + i);
          const b = a + LIMBS * half;
          butterfly(values, a, b);
          multiply(values, b, values, b, this.inverses, (LIMBS * i * order) / (2 * half));
        }
      }
    }
    for (let i = 0; i < order; i++) multiply(values, first + LIMBS * i, values, first + LIMBS * i, this.twists, LIMBS * i);
    for (let half = 1; half < order; half *= 2) {
      for (let block = 0; block < order; block += 2 * half) {
        for (let i = 0; i < half; i++) {
          const a = first + LIMBS * (block + i);
          const b = a + LIMBS * half;
          multiply(values, b, values, b, this.roots, (LIMBS * i * order) / (2 * half));
          butterfly(values, a, b);
        }
      }
    }
  }
}

const element = (elements: Elements, i: number): Elements => elements.subarray(LIMBS * i, LIMBS * (i + 1));

function reversed(i: number, order: number): number {
  let found = 0;
  for (let bit = 1; bit < order; bit *= 2) found = 2 * found + (Math.floor(i / bit) % 2);
  return found;
}

/** Replaces two elements by their sum and their difference. */
function butterfly(values: Elements, a: number, b: number): void {
  for (let limb = 0; limb < LIMBS; limb++) {
    const other = values[b + limb];
    values[b + limb] = values[a + limb] - other;
    values[a + limb] += other;
  }
  settle(values, a);
  settle(values, b);
}
