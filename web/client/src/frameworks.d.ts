// What is used of React and Vue, so that the package compiles without them.

declare module "react" {
  export function useState<T>(initial: () => T): [T, (next: T) => void];
  export function useEffect(effect: () => void): void;
  export function useSyncExternalStore<T>(
    subscribe: (listener: () => void) => () => void,
    getSnapshot: () => T,
    getServerSnapshot: () => T,
  ): T;
}

declare module "vue" {
  export function shallowReactive<T extends object>(target: T): T;
  export function onScopeDispose(dispose: () => void): void;
}
