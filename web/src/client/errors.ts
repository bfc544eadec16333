/** A task or measurement that no report is made for. Its message is `OPTION: PROBLEM`, as the Python client's. */
export class RequestError extends Error {
  override name = "RequestError";

  /** What is wrong: an entry, or several with commas. */
  get option(): string {
    return this.message.slice(0, this.message.indexOf(": "));
  }
}
