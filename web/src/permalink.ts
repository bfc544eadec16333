// The hash of the address, as #map=12.3/1.065/3.065&layer=2: what a reader sees, to be sent to others.

/** Whether the page lies in another document, as the widget of a notebook does: then it has no address of its own. */
export const embedded = location.protocol === "about:";

export class Permalink {
  private values = new URLSearchParams(location.hash.slice(1));
  private readonly listeners: (() => void)[] = [];
  private pending = 0;

  constructor() {
    addEventListener("hashchange", () => {
      this.values = new URLSearchParams(location.hash.slice(1));
      for (const listener of this.listeners) listener();
    });
  }

  get(key: string): string | null {
    return this.values.get(key);
  }

  /** A whole number in 0..count - 1; `other` where the hash holds none. */
  index(key: string, count: number, other: number): number {
    const value = Number(this.values.get(key) ?? NaN);
    return Number.isInteger(value) && value >= 0 && value < count ? value : other;
  }

  /** Keeps a value; null forgets it. The address follows a moment later and no entry is added to the history. */
  set(key: string, value: string | number | null): void {
    if (value === null) this.values.delete(key);
    else this.values.set(key, String(value));
    clearTimeout(this.pending);
    this.pending = window.setTimeout(() => this.write(), 150);
  }

  /** The address with all values in it, at once. */
  address(): string {
    this.write();
    return location.href;
  }

  /** Calls `listener` after the reader has changed the hash. */
  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  private write(): void {
    clearTimeout(this.pending);
    if (embedded) return;
    const text = this.values.toString().replaceAll("%2F", "/").replace(/=(?=&|$)/g, "");
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }
}
