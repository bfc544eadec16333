/**
 * The client of two servers, neither trusted alone: what an app on a phone runs, in a browser or in Node 20.
 *
 * field128    arithmetic modulo p by the same work for all values
 * circuits    what a phone proves: `Histogram`, `L1BoundSum`
 * prio3       shares of a measurement
 * task        the public task file, and which tasks a phone refuses
 * report      the encrypted report
 *
 * transforms/split is the same in Python. `npm run client` builds build/client, which the pages do not contain.
 */
export { RequestError } from "./errors";
export { type Memory, report, type ReportOptions } from "./report";
export { type Place, Task } from "./task";
