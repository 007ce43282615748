//! The figures of the last minutes: a row for each second.

use std::collections::VecDeque;
use std::time::Duration;

use super::columns::{Row, row};
use super::moment::{Moment, Stretch};

/// Time between two moments.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Rows that are kept: ten minutes.
pub const MAX_ROWS: usize = 600;
/// How many intervals percentiles and shares are taken over. Of one second alone they would jump
/// about where few streams run.
pub const WINDOW: usize = 10;

/// Keeps the last moments and the rows of the minutes before.
#[derive(Debug, Default)]
pub struct SecondSampler {
    /// One more than the window has intervals, oldest first.
    moments: VecDeque<Moment>,
    rows: VecDeque<Row>,
}

impl SecondSampler {
    /// Takes the figures of a moment; `None` for the very first one, before which there is nothing.
    pub fn take(&mut self, moment: Moment) -> Option<Stretch<'_>> {
        if self.moments.len() > WINDOW {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
        let row = row(&self.latest()?);
        if self.rows.len() == MAX_ROWS {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
        self.latest()
    }

    /// The time before the latest moment.
    fn latest(&self) -> Option<Stretch<'_>> {
        let before = self.moments.iter().rev().nth(1)?;
        Some(Stretch { now: self.moments.back()?, before, window: self.moments.front()? })
    }

    /// The rows that are kept, oldest first.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }
}
