// Which byte of which log an offset names (spec/delivery.md, D-6.8).

const OFFSETS = 2 ** 36;

/** The highest epoch: a position is a number that JavaScript holds exactly. */
export const MAX_EPOCH = 2 ** 17 - 1;

/** The number of the position at `offset` of the log of `epoch`. */
export function positionOf(epoch: number, offset: number): number {
  return epoch * OFFSETS + offset;
}

/** The epoch of a position. */
export function epochOf(position: number): number {
  return Math.floor(position / OFFSETS);
}

/** The log offset of a position. */
export function offsetOf(position: number): number {
  return position % OFFSETS;
}
