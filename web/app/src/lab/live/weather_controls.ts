// The sliders of a live run's weather. The server has bounds of its own, which are wider.

import type { LiveWeather } from "./offer.js";

/** One slider, from 0 to `most`, in the unit that people use. */
export interface WeatherControl {
  readonly name: string;
  readonly label: string;
  readonly about: string;
  readonly unit: string;
  readonly most: number;
  readonly step: number;
  readonly read: (weather: LiveWeather) => number;
  readonly write: (weather: LiveWeather, value: number) => LiveWeather;
}

export const WEATHER_CONTROLS: readonly WeatherControl[] = [
  {
    name: "rtt",
    label: "Round trip",
    about: "How long a packet and its acknowledgement take together.",
    unit: " ms",
    most: 1_000,
    step: 10,
    read: ({ rtt_ms }) => rtt_ms,
    write: (weather, rtt_ms) => ({ ...weather, rtt_ms }),
  },
  {
    name: "loss",
    label: "Loss",
    about: "The share of packets that are lost.",
    unit: " %",
    most: 50,
    step: 1,
    read: ({ loss }) => Math.round(loss * 100),
    write: (weather, percent) => ({ ...weather, loss: percent / 100 }),
  },
  {
    name: "burst",
    label: "Bursts",
    about: "How long losses last at a time, on average; 0 spreads them evenly.",
    unit: " ms",
    most: 1_000,
    step: 10,
    read: ({ burst_ms }) => burst_ms,
    write: (weather, burst_ms) => ({ ...weather, burst_ms }),
  },
];
