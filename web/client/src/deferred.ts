// A promise that is settled from outside.

/** See {@link newDeferred}. */
export interface Deferred<T> {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
  readonly reject: (error: unknown) => void;
}

/** A promise with what settles it. It may have no waiter, which is no unhandled rejection. */
export function newDeferred<T>(): Deferred<T> {
  let [resolve, reject]: [(value: T) => void, (error: unknown) => void] = [() => {}, () => {}];
  const promise = new Promise<T>((yes, no) => ([resolve, reject] = [yes, no]));
  promise.catch(() => {});
  return { promise, resolve, reject };
}
