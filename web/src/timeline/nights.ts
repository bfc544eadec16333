// Maps of single nights, loaded when they are wanted: a page on a disk may load scripts and nothing else.
import { h } from "../dom";
import { notNegative } from "../format";
import { unpack } from "../packed";
import type { Measure, Night, NightMap } from "../views";

const MOST_KEPT = 12; // maps in memory

/** A zone's users on a night, not below 0, and the ends of their pointwise 95% interval. */
export interface ZoneCount {
  readonly name: string;
  readonly users: number;
  readonly low: number;
  readonly high: number;
}

declare global {
  interface Window {
    sfumatoMap?: (date: string, packed: string) => void;
  }
}

export class NightMaps {
  private readonly received = new Map<string, string>();
  private readonly loading = new Map<string, Promise<NightMap>>();
  private readonly zones = new Map<string, ReadonlyMap<string, ZoneCount>>(); // by date, then by id

  constructor(private readonly format: number) {
    window.sfumatoMap = (date, packed) => this.received.set(date, packed);
  }

  /** The map of a night that has one. Rejects with a message for the reader; the next call tries again. */
  load(night: Night): Promise<NightMap> {
    const known = this.loading.get(night.date);
    if (known) return known;
    const wanted = this.run(night.map ?? "").then(() => this.unpack(night));
    this.loading.set(night.date, wanted);
    wanted.catch(() => this.loading.delete(night.date));
    const oldest = this.loading.keys().next().value;
    if (this.loading.size > MOST_KEPT && oldest !== undefined) this.loading.delete(oldest);
    return wanted;
  }

  /** The users of the zone with an id on each night; null where its number is not known. */
  async ofZone(id: string, nights: Night[]): Promise<(ZoneCount | null)[]> {
    const unread = nights.filter(({ date }) => !this.zones.has(date));
    for (let first = 0; first < unread.length; first += MOST_KEPT) {
      await Promise.all(unread.slice(first, first + MOST_KEPT).map(async (night) => {
        const map = night.map === null ? null : await this.load(night).catch(() => null);
        this.zones.set(night.date, map ? countsOf(map) : new Map());
      }));
    }
    return nights.map(({ date }) => this.zones.get(date)?.get(id) ?? null);
  }

  private run(address: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const script = h("script", { src: address });
      script.addEventListener("load", () => resolve());
      script.addEventListener("error", () => reject(new Error(`${address} could not be loaded. Copy it along with this page.`)));
      document.head.append(script);
      script.addEventListener("load", () => script.remove());
    });
  }

  private async unpack(night: Night): Promise<NightMap> {
    const packed = this.received.get(night.date);
    this.received.delete(night.date);
    if (packed === undefined) throw new Error(`${night.map} contains no map of ${night.date}. It is damaged, or belongs to another release.`);
    const map = await unpack<NightMap>(packed).catch(() => {
      throw new Error(`${night.map} is damaged.`);
    });
    if (map.format !== this.format) throw new Error(`${night.map} was written by another version of Sfumato than this page.`);
    return map;
  }
}

/** Whether a measure counts users, whatever the release calls them. */
export const countsUsers = ({ kind, unit }: Measure): boolean => kind === "count" && unit !== "records";

function countsOf({ layer }: NightMap): Map<string, ZoneCount> {
  const found = new Map<string, ZoneCount>();
  const [measure] = layer.measures;
  layer.zones?.forEach(([id], row) => {
    const [value, low, high] = [measure.value[row], measure.low[row], measure.high[row]];
    if (!countsUsers(measure) || value === null || low === null || high === null) return;
    const [users, least, most] = notNegative(value, low, high);
    found.set(id, { name: layer.cell_id[row], users, low: least, high: most });
  });
  return found;
}
