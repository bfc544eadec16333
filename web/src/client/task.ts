/** Task files: all that phones, the two aggregators and the collector agree on, as transforms/split/task.py reads them. */
import { sha256 } from "@noble/hashes/sha2.js";
import { type Circuit, Histogram, isEqual, L1BoundSum } from "./circuits";
import { RequestError } from "./errors";
import { concatenated, Prio3 } from "./prio3";

export const PRECISION = 3600; // seconds to which reports round their time
const FORMAT = "sfumato split task 1";
const MAX_EPSILON = 30;
const LEAST_EPSILON = 1e-8 / 0.005; // for each unit of a user's weight
const MAX_DEPTH = 8; // of a complete grid
const MAX_TREE_DEPTH = 15;
const MAX_ENTRIES = 4 ** MAX_DEPTH;
const LEAST_DEGREES = 1e-9;
const ROUNDING = 1e-9; // of sums of epsilon
const KEYS = ["leader", "helper", "collector", "verify"] as const;
const REQUIRED = ["name", "region", "depth", "epsilon", "min_batch", "start", "end", ...KEYS];
const PRIME = 2n ** 255n - 19n; // of X25519
// Points of small order, in their one encoding: a key of these gives everyone the same secret.
const SMALL_ORDER = [
  "00".repeat(32),
  `01${"00".repeat(31)}`,
  `ec${"ff".repeat(30)}7f`,
  "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
  "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
];

/** A place in degrees, or whole weights of several: longitude, latitude, weight. */
export type Place = { longitude: number; latitude: number } | readonly (readonly [number, number, number])[];

/** The place of a task in an adaptive map. See `Round` of transforms/split/task.py. */
interface Round {
  epsilon: number;
  users: number;
  round: number;
  spent: number;
  first: string;
}

type Json = Record<string, unknown>;

/** The content of a task file; its times are in seconds since 1970. */
interface Content {
  name: string;
  region: [number, number, number, number];
  depth: number;
  epsilon: number;
  min_batch: number;
  start: number;
  end: number;
  leader: string;
  helper: string;
  collector: string;
  verify: string;
  max_value: number;
  tree: string[] | null;
  map: Round | null;
}

/** A task that a phone answered, without its tree. */
export interface Answered {
  id: string;
  content: Content;
}

/** Returns the id of the first round's task of an adaptive map; a task's own id if none came before. */
export const seriesOf = ({ id, content }: Answered): string => content.map?.first || id;

/** A public task. */
export class Task {
  /** SHA-256 of the file. */
  readonly id: Uint8Array;
  readonly prio3: Prio3;
  private readonly circuit: Circuit;
  /** Level and code of the nodes whose entries are counted, in the vector's order. */
  private readonly entries: { level: number; code: number }[];

  private constructor(readonly text: string, readonly content: Content) {
    const { depth, tree, max_value } = content;
    this.entries = tree === null ? cells(depth) : entriesOf(tree, depth);
    check("depth, tree", this.entries.length <= MAX_ENTRIES);
    checkRegion(content.region);
    this.id = sha256(this.bytes);
    const { length } = this.entries;
    this.circuit = max_value === 1 ? new Histogram(length) : new L1BoundSum(length, max_value);
    this.prio3 = new Prio3(this.circuit, concatenated(new TextEncoder().encode("dap-18"), this.id));
  }

  /** Returns the task of a file. Raises RequestError. Numbers such as 2.0 count as whole, because JSON.parse reads them so. */
  static read(file: Uint8Array): Task {
    let text: string;
    let found: unknown;
    try {
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(file);
    } catch (error) {
      throw new RequestError(`task: cannot read as UTF-8 (${error})`);
    }
    try {
      found = JSON.parse(text);
    } catch (error) {
      throw new RequestError(`task: is no JSON (${error})`);
    }
    if (!isObject(found) || found.format !== FORMAT) throw new RequestError(`task: must be a JSON object with "format": "${FORMAT}"`);
    const entries = { ...found };
    delete entries.format;
    checkEntries("", entries, REQUIRED, ["map", "max_value", "tree"]);
    const [start, end] = [seconds("start", entries.start), seconds("end", entries.end)];
    const { region, tree, map } = entries;
    check("region", Array.isArray(region) && region.length === 4);
    check("tree", tree === undefined || Array.isArray(tree));
    check("map", map === undefined || isObject(map));
    if (isObject(map)) checkEntries("map.", map, ["epsilon", "users"], ["first", "round", "spent"]);
    const round = isObject(map) ? { round: 1, spent: 0, first: "", ...map } : null;
    const content = { max_value: 1, tree: null, ...entries, start, end, map: round } as unknown as Content;
    if (content.map) checkRound(content.map);
    checkContent(content);
    return new Task(text, content);
  }

  get bytes(): Uint8Array {
    return new TextEncoder().encode(this.text);
  }

  get hexId(): string {
    return hex(this.id);
  }

  /** What a phone keeps of a task that it answered. */
  get answered(): Answered {
    return { id: this.hexId, content: { ...this.content, tree: null } };
  }

  /** Raises RequestError: the window does not include this time, in seconds since 1970. */
  checkOpen(now: number): void {
    const { start, end } = this.content;
    if (!(start <= now && now < end)) {
      throw new RequestError(`task: takes reports from ${isoTime(start)} to ${isoTime(end)} only; check the clock, or wait for the next task`);
    }
  }

  /** Raises RequestError: this is not the next round of the map that `previous` is a round of. */
  checkFollows(previous: Answered): void {
    const before = previous.content;
    const { epsilon, tree } = this.content;
    const map = before.map && { ...before.map, round: before.map.round + 1, spent: before.map.spent + before.epsilon, first: seriesOf(previous) };
    const due: Content = { ...before, epsilon, tree, map, start: before.end, end: 2 * before.end - before.start };
    if (!map || !isSame(due, this.content)) throw new RequestError("task: is not the next round of the map that was answered; it is old or forged");
  }

  /** Returns what a phone reports, see `Circuit.encode`. Raises RequestError: a place is outside, or weights are none. */
  measurement(place: Place): number | number[] {
    const { max_value } = this.content;
    if (!Array.isArray(place)) {
      const { longitude, latitude } = place as { longitude: number; latitude: number };
      const cell = this.cellOf(longitude, latitude);
      return max_value === 1 ? cell : this.entries.map((_, i) => max_value * isEqual(i, cell));
    }
    if (max_value === 1) throw new RequestError("weights: the task counts one cell a user (max_value 1); give a location");
    const weights = this.entries.map(() => 0);
    for (const [longitude, latitude, weight] of place as readonly (readonly [number, number, number])[]) {
      if (!Number.isInteger(weight)) throw new RequestError("weights: must be a list of [longitude, latitude, weight] (a weight is not a whole number)");
      const cell = this.cellOf(longitude, latitude);
      for (let i = 0; i < weights.length; i++) weights[i] += weight * isEqual(i, cell);
    }
    return weights;
  }

  /** Returns the number of a place's entry, by the same work for all places in the region. Raises RequestError. */
  private cellOf(longitude: number, latitude: number): number {
    const { region, depth } = this.content;
    const [west, south, east, north] = region;
    if (!(latitude >= south && latitude <= north && longitude >= west && longitude <= east)) {
      throw new RequestError("location: is outside of the task's region; no report was made");
    }
    const side = 2 ** depth; // the eastern and southern borders belong to the last cell
    const x = Math.min(Math.floor((longitude - west) * (side / (east - west))), side - 1);
    const y = Math.min(Math.floor((north - latitude) * (side / (north - south))), side - 1);
    let code = 0;
    for (let bit = depth - 1; bit >= 0; bit--) code = (code << 2) | (((x >>> bit) & 1) << 1) | ((y >>> bit) & 1);
    let cell = 0; // the last entry whose node holds the place is the deepest
    this.entries.forEach((entry, i) => (cell += isEqual(code >>> (2 * (depth - entry.level)), entry.code) * (i - cell)));
    return cell;
  }
}

const isObject = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);
const isNumber = (value: unknown): boolean => typeof value === "number" && Number.isFinite(value);
const isWhole = (value: unknown, low: number, high: number): boolean => Number.isInteger(value) && low <= (value as number) && (value as number) <= high;
const isHex = (value: unknown): value is string => typeof value === "string" && /^(?:[0-9a-f]{2})*$/.test(value);
const isSame = (a: unknown, b: unknown): boolean => JSON.stringify(ordered(a)) === JSON.stringify(ordered(b));
export const hex = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const isoTime = (time: number): string => new Date(1000 * time).toISOString().replace(".000Z", "+00:00");

/** Returns a value with the keys of its objects in one order. */
function ordered(value: unknown): unknown {
  return isObject(value) ? Object.keys(value).sort().map((key) => [key, ordered(value[key])]) : value;
}

function check(name: string, holds: boolean): void {
  if (!holds) throw new RequestError(`task: ${name} is out of range; see the documentation of task files`);
}

function checkEntries(place: string, given: Json, required: string[], optional: string[]): void {
  const known = [...required, ...optional].sort();
  const unknown = Object.keys(given).filter((name) => !known.includes(name)).sort();
  if (unknown.length) throw new RequestError(`task: has no entry ${place}${unknown[0]}; entries are ${known.join(", ")}`);
  const missing = required.filter((name) => !Object.hasOwn(given, name)).sort();
  if (missing.length) throw new RequestError(`task: requires ${missing.map((name) => place + name).join(", ")}`);
}

function checkRound({ epsilon, users, round, spent, first }: Round): void {
  check("map.epsilon", isNumber(epsilon) && 0 < epsilon && epsilon <= MAX_EPSILON);
  check("map.users", isWhole(users, 1, 2 ** 40));
  check("map.round", isWhole(round, 1, 40));
  check("map.spent", isNumber(spent) && spent > 0 === round > 1);
  check("map.first", isHex(first) && first.length === (round > 1 ? 64 : 0));
}

function checkContent(content: Content): void {
  const { name, depth, max_value, epsilon, start, end, map, tree } = content;
  check("name", typeof name === "string" && /^(?:[^\p{C}\p{Z}]| ){1,100}$/u.test(name));
  check("depth", isWhole(depth, 1, tree === null ? MAX_DEPTH : MAX_TREE_DEPTH));
  check("max_value", isWhole(max_value, 1, 2 ** 16));
  check("min_batch", isWhole(content.min_batch, 1, 2 ** 40));
  check("epsilon", isNumber(epsilon) && LEAST_EPSILON * max_value <= epsilon && epsilon <= MAX_EPSILON);
  check("start, end", [start, end].every((time) => time >= 0 && time % PRECISION === 0));
  check("start, end", start < end);
  for (const role of KEYS) check(role, isPublicKey(content[role]));
  check(KEYS.join(", "), new Set(KEYS.map((role) => content[role])).size === KEYS.length);
  if (map) {
    check("epsilon, map.spent", map.spent + epsilon <= map.epsilon * (1 + ROUNDING));
    check("tree", tree !== null);
  }
}

function isPublicKey(key: unknown): boolean {
  if (!isHex(key) || key.length !== 64 || SMALL_ORDER.includes(key)) return false;
  const bigEndian = key.match(/../g)?.reverse().join("");
  return BigInt(`0x${bigEndian}`) < PRIME;
}

function checkRegion(region: readonly unknown[]): void {
  check("region", region.every(isNumber));
  const [west, south, east, north] = region as number[];
  const got = `got ${[west, south, east, north].map((value) => Number(value.toPrecision(6))).join(",")}`;
  if (!(west >= -180 && east <= 180 && south >= -90 && north <= 90)) {
    throw new RequestError(
      "region: must be WEST,SOUTH,EAST,NORTH with longitudes between -180 and 180, latitudes between -90 and " +
        `90, ${got}; to convert metres (in Python frame.to_crs(4326)) or to scale plain coordinates to degrees, see docs/how_to/your_logs.md`,
    );
  }
  if (!(Math.min(east - west, north - south) >= LEAST_DEGREES)) {
    throw new RequestError(`region: must be WEST,SOUTH,EAST,NORTH with west < east and south < north, at least 1e-09 degrees apart, ${got}`);
  }
}

/** Returns a time in RFC 3339's form in seconds since 1970; Python reads other ISO forms too. Raises RequestError. */
function seconds(name: string, value: unknown): number {
  const shown = typeof value === "string" ? `'${value}'` : JSON.stringify(value);
  const found = typeof value === "string" ? /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(\.\d+)?)?(?:(Z)|([+-])(\d\d):?(\d\d))?)?$/.exec(value) : null;
  const [year, month, day, hour, minute, second] = (found ?? []).slice(1, 7).map((part) => Number(part ?? 0));
  const local = Date.UTC(year, month - 1, day, hour, minute, second);
  const fields = found && `${found[1]}-${found[2]}-${found[3]}T${[hour, minute, second].map((part) => String(part).padStart(2, "0")).join(":")}.000Z`;
  if (!found || Number.isNaN(local) || new Date(local).toISOString() !== fields || Number(found[10] ?? 0) > 23 || Number(found[11] ?? 0) > 59) {
    throw new RequestError(`task: ${name} must be a time such as 2026-11-20T00:00:00+00:00, got ${shown}`);
  }
  if (Number(found[7] ?? 0) !== 0 || !(found[8] || found[9])) throw new RequestError(`task: ${name} requires a time zone and whole seconds, got ${shown}`);
  const east = found[9] ? (found[9] === "-" ? -60 : 60) * (60 * Number(found[10]) + Number(found[11])) : 0;
  return local / 1000 - east;
}

const cells = (depth: number): { level: number; code: number }[] => Array.from({ length: 4 ** depth }, (_, code) => ({ level: depth, code }));

/** Returns the entries of a tree: its nodes, and the root, of which fewer than four children are listed. */
function entriesOf(tree: readonly unknown[], depth: number): { level: number; code: number }[] {
  const isName = new RegExp(`^r[0-3]{0,${depth}}$`);
  for (const name of tree) {
    if (typeof name !== "string" || !isName.test(name)) {
      throw new RequestError(`task: tree: ${typeof name === "string" ? `'${name}'` : JSON.stringify(name)} is no cell id: r and at most ${depth} digits 0 to 3`);
    }
  }
  const names = ["r", ...(tree as string[])];
  const isSorted = names.every((name, i) => i === 0 || names[i - 1].length < name.length || (names[i - 1].length === name.length && names[i - 1] < name));
  check("tree", isSorted); // so equal trees have equal texts
  const children = new Map<string, number>();
  for (const name of names.slice(1)) children.set(name.slice(0, -1), 1 + (children.get(name.slice(0, -1)) ?? 0));
  const entries = names.filter((name) => (children.get(name) ?? 0) < 4);
  return entries.map((name) => ({ level: name.length - 1, code: Number.parseInt(`0${name.slice(1)}`, 4) }));
}
