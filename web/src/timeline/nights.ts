// Maps of single nights, loaded when they are wanted: a page on a disk may load scripts and nothing else.
import { h } from "../dom";
import { unpack } from "../packed";
import type { Night, NightMap } from "../views";

const MOST_KEPT = 12; // maps in memory

/** A zone's users on a night, and the upper end of their pointwise interval. */
export interface ZoneCount {
  readonly name: string;
  readonly users: number;
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
  ofZone(id: string, nights: Night[]): Promise<(ZoneCount | null)[]> {
    return Promise.all(nights.map(async (night) => {
      if (!this.zones.has(night.date)) {
        const map = night.map === null ? null : await this.load(night).catch(() => null);
        if (map) this.zones.set(night.date, countsOf(map));
      }
      return this.zones.get(night.date)?.get(id) ?? null;
    }));
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

function countsOf({ layer: { zones, cell_id, measures: [{ unit, value, high }] } }: NightMap): Map<string, ZoneCount> {
  const found = new Map<string, ZoneCount>();
  zones?.forEach(([id], row) => {
    const users = value[row];
    const most = high[row];
    if (unit === "users" && users !== null && most !== null) found.set(id, { name: cell_id[row], users, high: most });
  });
  return found;
}
