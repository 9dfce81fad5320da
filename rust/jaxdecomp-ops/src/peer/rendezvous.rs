//! Rendezvous of the host threads that drive the devices of one run.

use super::node::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Rendezvous by key, each of which exchanges one value for each rank. A key can be used repeatedly.
#[derive(Debug)]
pub(super) struct RendezvousMap<K, T> {
    state: Mutex<State<K, T>>,
    changed: Condvar,
    timeout: Duration,
}

#[derive(Debug)]
struct State<K, T> {
    pending: HashMap<K, Pending<T>>,
    /// Keys of aborted runs, with the reason.
    aborted: HashMap<K, String>,
}

type Guard<'a, K, T> = MutexGuard<'a, State<K, T>>;

#[derive(Debug)]
struct Pending<T> {
    /// Values of the ranks that have joined.
    values: Vec<Option<T>>,
    /// Values of all ranks, once all have joined.
    result: Option<Arc<[T]>>,
    /// Number of ranks that have received the result.
    released: usize,
}

/// Reason why a rendezvous did not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Only this number of participants joined in time.
    Timeout(usize),
    /// A participant aborted the run, with its reason.
    Aborted(String),
}

impl<K: Clone + Eq + Hash, T> RendezvousMap<K, T> {
    /// Creates an empty map; `timeout` bounds the wait of each participant.
    pub(super) fn new(timeout: Duration) -> Self {
        let state = Mutex::new(State { pending: HashMap::new(), aborted: HashMap::new() });
        Self { state, changed: Condvar::new(), timeout }
    }

    /// Waits until all ranks below `size` have joined with a value; returns the values by rank.
    pub(super) fn join(&self, key: &K, rank: usize, size: usize, value: T) -> Result<Arc<[T]>, Failure> {
        assert!(rank < size, "rank {rank} of {size}");
        let deadline = Instant::now() + self.timeout;
        let mut state = lock(&self.state);
        // The previous rendezvous of this key ends when its last rank has received the result.
        while state.pending.get(key).is_some_and(|it| it.result.is_some() || it.values[rank].is_some()) {
            state = self.wait(state, deadline).map_err(|_| Failure::Timeout(0))?;
        }
        let empty = || Pending { values: (0..size).map(|_| None).collect(), result: None, released: 0 };
        let pending = state.pending.entry(key.clone()).or_insert_with(empty);
        pending.values[rank] = Some(value);
        if pending.values.iter().all(Option::is_some) {
            pending.result = Some(pending.values.iter_mut().filter_map(Option::take).collect());
            self.changed.notify_all();
        }
        loop {
            let Some(pending) = state.pending.get_mut(key) else { return Err(Failure::Timeout(0)) };
            if let Some(result) = pending.result.clone() {
                pending.released += 1;
                if pending.released == size {
                    state.pending.remove(key);
                    self.changed.notify_all();
                }
                return Ok(result);
            }
            let joined = pending.values.iter().flatten().count();
            if let Some(reason) = state.aborted.get(key).cloned() {
                self.withdraw(&mut state, key, rank);
                return Err(Failure::Aborted(reason));
            }
            state = match self.wait(state, deadline) {
                Ok(state) => state,
                Err(mut state) => {
                    self.withdraw(&mut state, key, rank);
                    return Err(Failure::Timeout(joined));
                }
            };
        }
    }

    /// Fails present and later rendezvous of this key.
    pub(super) fn abort(&self, key: &K, reason: &str) {
        lock(&self.state).aborted.entry(key.clone()).or_insert_with(|| reason.to_owned());
        self.changed.notify_all();
    }

    /// Removes the value of a rank, and the rendezvous if no value is left.
    fn withdraw(&self, state: &mut State<K, T>, key: &K, rank: usize) {
        if let Some(pending) = state.pending.get_mut(key) {
            pending.values[rank] = None;
            if pending.values.iter().all(Option::is_none) {
                state.pending.remove(key);
            }
            self.changed.notify_all();
        }
    }

    /// Waits for a change; fails after the deadline.
    fn wait<'a>(&self, state: Guard<'a, K, T>, deadline: Instant) -> Result<Guard<'a, K, T>, Guard<'a, K, T>> {
        match deadline.checked_duration_since(Instant::now()) {
            Some(left) => Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0),
            None => Err(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, RendezvousMap};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn every_rank_receives_all_values_repeatedly() {
        let map = RendezvousMap::new(Duration::from_secs(60));
        thread::scope(|scope| {
            for rank in 0..4_usize {
                let map = &map;
                scope.spawn(move || {
                    for round in 0..500_usize {
                        let values = map.join(&"run", rank, 4, round * 10 + rank).expect("all ranks join");
                        assert_eq!(*values, [0, 1, 2, 3].map(|other| round * 10 + other));
                    }
                });
            }
        });
        assert!(map.state.lock().expect("no panic").pending.is_empty());
    }

    #[test]
    fn runs_are_independent() {
        let map = RendezvousMap::new(Duration::from_secs(60));
        thread::scope(|scope| {
            for run in 0..8_usize {
                for rank in 0..2 {
                    let map = &map;
                    scope.spawn(move || assert_eq!(*map.join(&run, rank, 2, run).expect("both join"), [run; 2]));
                }
            }
        });
    }

    #[test]
    fn a_missing_rank_is_a_timeout() {
        let map = RendezvousMap::new(Duration::from_millis(20));
        assert_eq!(map.join(&(), 1, 3, ()), Err(Failure::Timeout(1)));
        assert_eq!(map.join(&(), 1, 3, ()), Err(Failure::Timeout(1)), "the rank has withdrawn");
        let outcomes = thread::scope(|scope| {
            let map = &map;
            [0, 2].map(|rank| scope.spawn(move || map.join(&(), rank, 3, ()))).map(|t| t.join().expect("no panic"))
        });
        assert!(outcomes.contains(&Err(Failure::Timeout(2))), "{outcomes:?}");
    }

    #[test]
    fn an_abort_fails_present_and_later_participants() {
        let map = RendezvousMap::new(Duration::from_secs(60));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| map.join(&"run", 0, 2, ()));
            map.abort(&"run", "out of memory");
            let failure = Err(Failure::Aborted("out of memory".to_owned()));
            assert_eq!(waiting.join().expect("no panic"), failure);
            assert_eq!(map.join(&"run", 0, 2, ()), failure);
        });
    }
}
