//! Sequences that wait for a place in the batch, by tenant.

use std::collections::VecDeque;

use super::sequence::Sequence;
use super::shares::AccountId;
use crate::request::Tag;

/// Waiting sequences of each tenant by priority and then by arrival.
#[derive(Debug, Default)]
pub(super) struct WaitingQueues {
    /// Queues by account.
    queues: Vec<VecDeque<Sequence>>,
    len: usize,
    /// Number of sequences that are not paused.
    ready: usize,
    tokens: usize,
}

impl WaitingQueues {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of sequences that could be computed at once.
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Tokens of all waiting sequences.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.queues.iter().flatten()
    }

    /// Tenants with waiting sequences.
    pub fn accounts(&self) -> impl Iterator<Item = AccountId> {
        (0..self.queues.len()).filter(|&account| !self.queues[account].is_empty())
    }

    /// Waiting sequences of the tenant, in order.
    pub fn of(&self, account: AccountId) -> &VecDeque<Sequence> {
        &self.queues[account]
    }

    pub fn get_mut(&mut self, account: AccountId, index: usize) -> &mut Sequence {
        &mut self.queues[account][index]
    }

    /// For each tenant with a sequence that is not paused, the arrival of the first such one.
    pub fn first_ready(&self) -> impl Iterator<Item = (AccountId, u64)> {
        self.queues.iter().enumerate().filter_map(|(account, queue)| {
            let first = queue.iter().find(|sequence| !sequence.paused)?;
            Some((account, first.arrival))
        })
    }

    pub fn insert(&mut self, sequence: Sequence) {
        self.len += 1;
        self.ready += usize::from(!sequence.paused);
        self.tokens += sequence.tokens.len();
        if self.queues.len() <= sequence.account {
            self.queues.resize_with(sequence.account + 1, VecDeque::new);
        }
        let queue = &mut self.queues[sequence.account];
        let at = queue.partition_point(|other| other.rank() < sequence.rank());
        queue.insert(at, sequence);
    }

    pub fn find_mut(&mut self, tag: Tag) -> Option<&mut Sequence> {
        self.queues.iter_mut().flatten().find(|sequence| sequence.tag == tag)
    }

    /// Removes the `index`th waiting sequence of a tenant.
    pub fn take(&mut self, account: AccountId, index: usize) -> Sequence {
        let sequence = self.queues[account].remove(index).expect("the caller found it");
        self.len -= 1;
        self.ready -= usize::from(!sequence.paused);
        self.tokens -= sequence.tokens.len();
        sequence
    }

    /// Removes the first sequence for which `which` returns true.
    pub fn take_where(&mut self, which: impl Fn(&Sequence) -> bool) -> Option<Sequence> {
        let mut found = self.queues.iter().enumerate().filter_map(|(account, queue)| {
            queue.iter().position(&which).map(|index| (account, index))
        });
        let (account, index) = found.next()?;
        Some(self.take(account, index))
    }

    /// Pauses or resumes the sequence; returns its tenant if it waits here and its state changed.
    pub fn pause(&mut self, tag: Tag, paused: bool) -> Option<AccountId> {
        let mut all = self.queues.iter_mut().flatten();
        let sequence = all.find(|sequence| sequence.tag == tag && sequence.paused != paused)?;
        sequence.paused = paused;
        match paused {
            true => self.ready -= 1,
            false => self.ready += 1,
        }
        Some(sequence.account)
    }
}
