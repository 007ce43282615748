//! Times at which the engine copies keys and values to and from the store on disk: between two
//! steps.
//!
//! Beside running answers the copies get a small share of the time, so that no answer notices them.
//! An idle engine copies until a command arrives.

use std::time::Duration;

use loquent_infer::request::Work;
use loquent_infer::scheduler::StoreTraffic;

use super::EngineLoop;

/// Time for restored blocks between two steps of running answers. One block at least is taken.
const RESTORE_TIME: Duration = Duration::from_millis(2);
/// Time that passes after a block was saved beside running answers, for each unit of time that it
/// took: one per cent of the engine's time is for saving.
const SAVE_PAUSE: u32 = 99;

impl EngineLoop {
    /// Counts the tokens of the work's prompt that the store has.
    pub(super) fn look_up_stored(&self, work: &mut Work) {
        if let Some(desk) = &self.prefixes {
            work.stored_tokens = desk.stored_tokens(work);
        }
    }

    /// Has the stored beginnings of prompts read that have just got a place.
    pub(super) fn order_stored(&mut self) {
        let Some(desk) = &mut self.prefixes else { return };
        let mut traffic = StoreTraffic::of(&mut self.scheduler);
        for order in traffic.take_orders() {
            let id = order.id;
            if !desk.order(order) {
                traffic.end(id);
            }
        }
    }

    /// Copies blocks that were read into the cache: all of them, or beside running answers as many
    /// as [`RESTORE_TIME`] allows.
    pub(super) fn restore_stored(&mut self) {
        let Some(desk) = &mut self.prefixes else { return };
        desk.skip_ended(&mut self.scheduler);
        let began = self.clock.now();
        while desk.restore_next(&mut self.scheduler, self.runner.as_mut()) {
            let others_run = StoreTraffic::of(&mut self.scheduler).others_run();
            if others_run && self.clock.now().saturating_sub(began) >= RESTORE_TIME {
                return;
            }
        }
    }

    /// Copies one block for the writer while the engine is idle. Returns false if there is none, or
    /// no room for it: the writer sends a command when there is.
    pub(super) fn save_idle(&mut self) -> bool {
        let Some(desk) = &mut self.prefixes else { return false };
        desk.save_next(&mut self.scheduler, self.runner.as_mut())
    }

    /// Copies one block for the writer beside running answers, if it is time.
    pub(super) fn save_beside(&mut self) {
        let Some(desk) = &mut self.prefixes else { return };
        let began = self.clock.now();
        if began >= self.next_save && desk.save_next(&mut self.scheduler, self.runner.as_mut()) {
            let ended = self.clock.now();
            self.next_save = ended + ended.saturating_sub(began) * SAVE_PAUSE;
        }
    }

    /// Saves what is not saved yet. The engine has ended.
    pub(super) fn save_rest(&mut self) {
        if let Some(desk) = self.prefixes.take() {
            desk.end(&mut self.scheduler, self.runner.as_mut(), &self.timer);
        }
    }
}
