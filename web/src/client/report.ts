/** Encrypted reports (DAP 18), byte for byte those of transforms/split/reports.py for equal randomness. */
import { Aes128Gcm, CipherSuite, HkdfSha256 } from "@hpke/core";
import { DhkemX25519HkdfSha256 } from "@hpke/dhkem-x25519";
import { RequestError } from "./errors";
import { concatenated, NONCE_SIZE, SEED_SIZE } from "./prio3";
import { type Answered, type Place, PRECISION, seriesOf, Task } from "./task";

const SUITE = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes128Gcm() });
const ROLES = ["leader", "helper"] as const;
const SENDER = 1; // a device, in the purpose of a ciphertext; the leader is 2 and the helper 3
const PREFIX = "sfumato/"; // of keys in the memory

/** Where a phone keeps which tasks it answered: localStorage, or what has the same two functions, also asynchronous. */
export interface Memory {
  getItem(key: string): string | null | Promise<string | null>;
  setItem(key: string, value: string): void | Promise<void>;
}

export interface ReportOptions {
  /** Seconds since 1970, by the phone's clock if absent. */
  now?: number;
  /** Bytes for the id, the shares and the two encryptions, for tests only. */
  randomness?: Uint8Array;
}

let turn: Promise<unknown> = Promise.resolve(); // so that two calls at a time do not answer one task twice

/**
 * Returns a phone's report for a task, for the leader. It has the same size, by the same work, wherever the phone is.
 *
 * The phone answers each task once, and the rounds of an adaptive map in their order: the memory keeps the task before
 * the report is returned. Raises RequestError: the task is malformed, old, forged or answered, or the place is outside.
 *
 * file: the task, as it was downloaded, from a source that the app trusts.
 */
export function report(file: Uint8Array, place: Place, memory: Memory, options: ReportOptions = {}): Promise<Uint8Array> {
  const mine = turn.then(() => answer(Task.read(file), place, memory, options));
  turn = mine.catch(() => undefined);
  return mine;
}

async function answer(task: Task, place: Place, memory: Memory, { now = Date.now() / 1000, randomness }: ReportOptions): Promise<Uint8Array> {
  task.checkOpen(now);
  const series = seriesOf(task.answered);
  const kept = await memory.getItem(PREFIX + series);
  const previous: Answered | null = kept === null ? null : JSON.parse(kept);
  if (previous && (previous.id === task.hexId || !task.content.map)) throw new RequestError("task: this device has answered it; a device answers a task once");
  if (previous) task.checkFollows(previous);
  else if (series !== task.hexId) throw new RequestError("task: this device has not answered the first round of the map; it can answer the next map");
  const made = await makeReport(task, task.measurement(place), now, randomness);
  await memory.setItem(PREFIX + series, JSON.stringify(task.answered));
  return made;
}

/** Returns an encrypted report. See `make_reports` of transforms/split/reports.py. */
async function makeReport(task: Task, measurement: number | number[], now: number, randomness?: Uint8Array): Promise<Uint8Array> {
  const { randomnessSize } = task.prio3;
  const ends = [NONCE_SIZE, NONCE_SIZE + randomnessSize, NONCE_SIZE + randomnessSize + 2 * SEED_SIZE];
  const drawn = randomness ?? crypto.getRandomValues(new Uint8Array(ends[2]));
  if (drawn.length !== ends[2]) throw new RangeError(`randomness: must be ${ends[2]} bytes`);
  const [id, rest, secrets] = ends.map((end, i) => drawn.subarray(i ? ends[i - 1] : 0, end));
  const shares = task.prio3.shard(measurement, id, rest);
  const time = Math.floor(now / PRECISION) * PRECISION;
  const metadata = concatenated(id, big(8, time), big(2, 0), big(4, shares.public.length), shares.public); // without extensions
  const associated = concatenated(task.id, big(4, task.bytes.length), task.bytes, metadata);
  const sealed = [shares.leader, shares.helpers[0]].map(async (share, role) => {
    const key = fromHex(task.content[ROLES[role]]);
    const info = concatenated(new TextEncoder().encode("dap-18 input share"), new Uint8Array([SENDER, 2 + role]));
    const recipientPublicKey = await SUITE.kem.deserializePublicKey(key);
    // The library says that ekm is for tests: RFC 9180 derives a message's key pair from fresh secret bytes, as here.
    const ekm = secrets.slice(SEED_SIZE * role, SEED_SIZE * (role + 1));
    const sender = await SUITE.createSenderContext({ recipientPublicKey, info, ekm });
    const payload = new Uint8Array(await sender.seal(concatenated(big(2, 0), big(4, share.length), share), associated));
    const enc = new Uint8Array(sender.enc);
    return concatenated(key.subarray(0, 1), big(2, enc.length), enc, big(4, payload.length), payload);
  });
  return concatenated(metadata, ...(await Promise.all(sealed)));
}

/** Returns a whole number below 2^53 as bytes, the highest first. */
const big = (size: number, value: number): Uint8Array => Uint8Array.from({ length: size }, (_, i) => Math.floor(value / 256 ** (size - 1 - i)) % 256);

const fromHex = (text: string): Uint8Array<ArrayBuffer> => Uint8Array.from(text.match(/../g) ?? [], (byte) => Number.parseInt(byte, 16));
