//! Scheduler of Andes (Liu et al., arXiv 2404.16283v2), implemented anew after its published
//! description; details may differ from its authors' own.
//!
//! Before each step the server predicts, for each request, the QoE after a horizon if it is served
//! and if it is not. The difference is what serving it gains; the priority is the gain for each
//! token of its context, which it keeps in memory. For each batch size, the requests with the
//! highest priorities are packed until the batch or the memory is full (a greedy solution of the
//! knapsack problem). The batch size with the largest total gain is used, and running requests
//! that are not in it are preempted.
//!
//! The server models its readers: a token counts as received when it is generated. Where the paper
//! leaves a choice, the model here is in favour of Andes: it decides before each step and not only
//! under pressure, step times are those of the machine, and preemption costs nothing.

use super::metric::Expectation;

/// A reader, as the server models it. Times are in seconds since the request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelledReader {
    now_s: f64,
    generated: f64,
    digested: f64,
    /// Area between the expected and the modelled curve so far, in token seconds.
    delay: f64,
}

/// A request to be scheduled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AndesRequest {
    /// Its reader.
    pub reader: ModelledReader,
    /// Tokens of its prompt and of its answer so far.
    pub context_tokens: u32,
    /// Time to compute the rest of its prompt, in seconds.
    pub prompt_s: f64,
}

/// Parameters of the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct AndesScheduler {
    /// Expectation of all readers.
    pub expectation: Expectation,
    /// Time for which QoE is predicted.
    pub horizon_s: f64,
    /// Batch sizes to try, ascending.
    pub batch_sizes: Vec<usize>,
    /// Tokens for which there is memory.
    pub memory_tokens: u32,
}

impl Default for ModelledReader {
    fn default() -> Self {
        Self { now_s: 0.0, generated: 0.0, digested: 0.0, delay: 0.0 }
    }
}

impl ModelledReader {
    /// Notes that a token was generated.
    pub fn note_token(&mut self) {
        self.generated += 1.0;
    }

    /// Lets the reader digest what there is until `now_s`.
    pub fn advance(&mut self, expectation: &Expectation, now_s: f64) {
        let wait_s = now_s - self.now_s;
        let reads_s = self.in_hand_s(expectation).min(wait_s);
        self.digest(expectation, reads_s, expectation.tokens_per_s);
        self.digest(expectation, wait_s - reads_s, 0.0);
    }

    /// Time until everything generated is digested.
    fn in_hand_s(&self, expectation: &Expectation) -> f64 {
        (self.generated - self.digested).max(0.0) / expectation.tokens_per_s
    }

    /// Digests at a constant speed for some time.
    fn digest(&mut self, expectation: &Expectation, for_s: f64, tokens_per_s: f64) {
        // The expected curve bends when the first token is due.
        let before_s = (expectation.ttft_s - self.now_s).clamp(0.0, for_s);
        for (part_s, expected_per_s) in
            [(before_s, 0.0), (for_s - before_s, expectation.tokens_per_s)]
        {
            let behind = self.expected(expectation) - self.digested;
            self.delay += positive_area(behind, expected_per_s - tokens_per_s, part_s);
            self.digested += tokens_per_s * part_s;
            self.now_s += part_s;
        }
    }

    /// Tokens that the reader expects to have digested by now.
    fn expected(&self, expectation: &Expectation) -> f64 {
        (self.now_s - expectation.ttft_s).max(0.0) * expectation.tokens_per_s
    }

    /// Returns the QoE so far.
    pub fn qoe(&self, expectation: &Expectation) -> f64 {
        let whole = self.expected(expectation).powi(2) / (2.0 * expectation.tokens_per_s);
        if whole > 0.0 { 1.0 - self.delay / whole } else { 1.0 }
    }

    /// Returns the QoE after `horizon_s` without service.
    fn qoe_waiting(mut self, expectation: &Expectation, horizon_s: f64) -> f64 {
        self.advance(expectation, self.now_s + horizon_s);
        self.qoe(expectation)
    }

    /// Returns the QoE after `horizon_s` if a token is generated every `step_s`, the first after
    /// `prompt_s`.
    fn qoe_served(
        mut self,
        expectation: &Expectation,
        horizon_s: f64,
        prompt_s: f64,
        step_s: f64,
    ) -> f64 {
        let prompt_s = prompt_s.min(horizon_s);
        self.advance(expectation, self.now_s + prompt_s);
        let (left_s, speed) = (horizon_s - prompt_s, 1.0 / step_s);
        // A slow engine lets the reader use up what is in hand.
        let shrinks = expectation.tokens_per_s - speed;
        let lasts_s = if shrinks > 0.0 {
            (self.generated - self.digested).max(0.0) / shrinks
        } else {
            left_s
        };
        let reads_s = lasts_s.min(left_s);
        self.digest(expectation, reads_s, expectation.tokens_per_s);
        self.digest(expectation, left_s - reads_s, speed.min(expectation.tokens_per_s));
        self.qoe(expectation)
    }
}

/// Area above zero of a line that starts at `from` and rises by `slope` for `length`.
fn positive_area(from: f64, slope: f64, length: f64) -> f64 {
    let to = from + slope * length;
    match (from > 0.0, to > 0.0) {
        (true, true) => (from + to) / 2.0 * length,
        (true, false) => from * from / (2.0 * -slope),
        (false, true) => to * to / (2.0 * slope),
        (false, false) => 0.0,
    }
}

impl AndesScheduler {
    /// Chooses the requests to serve; `step_s` is the duration of a step of a batch.
    pub fn choose(&self, requests: &[AndesRequest], step_s: impl Fn(usize) -> f64) -> Vec<usize> {
        let waiting: Vec<f64> = requests
            .iter()
            .map(|one| one.reader.qoe_waiting(&self.expectation, self.horizon_s))
            .collect();
        let mut best = (f64::NEG_INFINITY, Vec::new());
        for &batch_size in &self.batch_sizes {
            let batch_size = batch_size.min(requests.len());
            let gains = self.gains(requests, &waiting, step_s(batch_size));
            let chosen = self.pack(requests, &gains, batch_size);
            let total: f64 = chosen.iter().map(|&at| gains[at]).sum();
            if total > best.0 {
                best = (total, chosen);
            }
            if batch_size == requests.len() {
                break;
            }
        }
        best.1
    }

    fn gains(&self, requests: &[AndesRequest], waiting: &[f64], step_s: f64) -> Vec<f64> {
        let served = |one: &AndesRequest| {
            one.reader.qoe_served(&self.expectation, self.horizon_s, one.prompt_s, step_s)
        };
        requests.iter().zip(waiting).map(|(one, waits)| served(one) - waits).collect()
    }

    fn pack(&self, requests: &[AndesRequest], gains: &[f64], batch_size: usize) -> Vec<usize> {
        let priority = |at: usize| gains[at] / f64::from(requests[at].context_tokens);
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by(|&one, &other| priority(other).total_cmp(&priority(one)));
        let mut free = self.memory_tokens;
        let fits = |&at: &usize| {
            let left = free.checked_sub(requests[at].context_tokens);
            left.inspect(|&left| free = left).is_some()
        };
        order.into_iter().filter(fits).take(batch_size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expectation = Expectation { ttft_s: 1.0, tokens_per_s: 10.0 };

    fn scheduler(batch_size: usize, memory_tokens: u32) -> AndesScheduler {
        let batch_sizes = vec![batch_size];
        AndesScheduler { expectation: EXPECTED, horizon_s: 10.0, batch_sizes, memory_tokens }
    }

    /// A request of `now_s` ago with this many tokens generated at its first second.
    fn request(now_s: f64, generated: u32) -> AndesRequest {
        let mut reader = ModelledReader::default();
        reader.advance(&EXPECTED, 1.0);
        (0..generated).for_each(|_| reader.note_token());
        reader.advance(&EXPECTED, now_s);
        let prompt_s = if generated == 0 { 0.1 } else { 0.0 };
        AndesRequest { reader, context_tokens: 50 + generated, prompt_s }
    }

    #[test]
    fn the_modelled_reader_digests_what_was_generated() {
        let served = request(3.0, 20).reader;
        assert!((served.digested - 20.0).abs() < 1e-9 && served.delay < 1e-9, "{served:?}");
        assert_eq!(served.qoe(&EXPECTED), 1.0);
        // Ten tokens of twenty: the second half of a triangle of two seconds is half missed.
        let half = request(3.0, 10).reader;
        assert!((half.qoe(&EXPECTED) - (1.0 - 5.0 / 20.0)).abs() < 1e-9, "{half:?}");
        assert!(request(3.0, 0).reader.qoe(&EXPECTED).abs() < 1e-9);
    }

    #[test]
    fn a_request_without_text_comes_before_one_with_text_in_hand() {
        let requests = [request(2.0, 80), request(2.0, 0)];
        assert_eq!(scheduler(1, 10_000).choose(&requests, |_| 0.05), [1]);
        // Of two without text in hand, the one with the shorter context.
        let requests = [AndesRequest { context_tokens: 400, ..request(2.0, 0) }, request(2.0, 0)];
        assert_eq!(scheduler(1, 10_000).choose(&requests, |_| 0.05), [1]);
    }

    #[test]
    fn memory_bounds_the_batch() {
        let requests = [request(2.0, 0), request(2.0, 0), request(2.0, 0)];
        assert_eq!(scheduler(3, 120).choose(&requests, |_| 0.05), [0, 1]);
        assert_eq!(scheduler(3, 150).choose(&requests, |_| 0.05), [0, 1, 2]);
    }

    #[test]
    fn the_batch_size_with_the_largest_total_gain_is_used() {
        let requests = [request(2.0, 0); 4];
        let both = AndesScheduler { batch_sizes: vec![2, 4], ..scheduler(4, 10_000) };
        // A step that hardly grows serves all, one that grows tenfold serves two.
        assert_eq!(both.choose(&requests, |_| 0.09).len(), 4);
        assert_eq!(both.choose(&requests, |rows| if rows > 2 { 0.9 } else { 0.09 }).len(), 2);
    }

    #[test]
    fn areas_above_zero_are_those_of_triangles_and_trapezoids() {
        assert_eq!(positive_area(1.0, 1.0, 2.0), 4.0);
        assert_eq!(positive_area(1.0, -1.0, 2.0), 0.5);
        assert_eq!(positive_area(-1.0, 1.0, 2.0), 0.5);
        assert_eq!(positive_area(-1.0, 0.0, 2.0), 0.0);
    }
}
