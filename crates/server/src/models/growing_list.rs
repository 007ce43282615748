//! A list that grows while its elements are borrowed.

use std::ops::Index;
use std::sync::OnceLock;

/// Maximum number of elements added to a list after it was made.
const MAX_ADDED: usize = 64;

/// A list whose elements stay where they are: it only grows, up to a bound.
pub(super) struct GrowingList<T> {
    first: Vec<T>,
    /// Filled from the beginning, without holes.
    added: Box<[OnceLock<T>]>,
}

impl<T> GrowingList<T> {
    pub fn new(first: Vec<T>) -> Self {
        Self { first, added: (0..MAX_ADDED).map(|_| OnceLock::new()).collect() }
    }

    /// Adds an element at the end, and returns its index; returns the element if the list is full.
    pub fn push(&self, mut element: T) -> Result<usize, T> {
        for (index, place) in self.added.iter().enumerate() {
            match place.set(element) {
                Ok(()) => return Ok(self.first.len() + index),
                // Another thread has filled this place.
                Err(back) => element = back,
            }
        }
        Err(element)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.added.iter().map_while(OnceLock::get))
    }
}

impl<T> Index<usize> for GrowingList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match index.checked_sub(self.first.len()) {
            None => &self.first[index],
            Some(index) => self.added[index].get().expect("an index is that of an element"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_added_up_to_a_bound_and_stay() {
        let list = GrowingList::new(vec![0]);
        let first = &list[0];
        for number in 1..=MAX_ADDED {
            assert_eq!(list.push(number), Ok(number));
        }
        assert_eq!(list.push(99), Err(99));
        assert!(list.iter().copied().eq(0..=MAX_ADDED));
        assert_eq!((*first, list[MAX_ADDED]), (0, MAX_ADDED));
    }
}
