//! The figures of the last minutes, one row per second.

use std::collections::VecDeque;
use std::time::Duration;

use super::columns::{Row, row};
use super::moment::{Moment, Stretch};

/// Time between two moments.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Number of rows kept: ten minutes.
pub const MAX_ROWS: usize = 600;
/// Number of intervals over which percentiles and shares are computed. Over a single second they
/// would jump when few streams run.
pub const WINDOW: usize = 10;

/// Keeps the latest moments, and the rows of the last minutes.
#[derive(Debug, Default)]
pub struct SecondSampler {
    /// Moments of the window, oldest first: one more than it has intervals.
    moments: VecDeque<Moment>,
    rows: VecDeque<Row>,
}

impl SecondSampler {
    /// Adds a moment; returns `None` for the very first one, which has no predecessor.
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

    /// Returns the stretch that ends with the latest moment.
    fn latest(&self) -> Option<Stretch<'_>> {
        let before = self.moments.iter().rev().nth(1)?;
        Some(Stretch { now: self.moments.back()?, before, window: self.moments.front()? })
    }

    /// Returns the kept rows, oldest first.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }
}
