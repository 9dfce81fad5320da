//! Where the threads that drive the devices of one run tell each other something.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Meetings of threads that know each other by a key. Several meetings of one key follow upon each other.
#[derive(Debug)]
pub(super) struct Meetings<K, T> {
    rounds: Mutex<HashMap<K, Round<T>>>,
    changed: Condvar,
    patience: Duration,
}

#[derive(Debug)]
struct Round<T> {
    brought: Vec<Option<T>>,
    /// What all brought, once all are there.
    shared: Option<Arc<[T]>>,
    gone: usize,
}

impl<K: Clone + Eq + Hash, T> Meetings<K, T> {
    /// Meetings for which each thread waits so long.
    #[must_use]
    pub(super) fn new(patience: Duration) -> Self {
        Self { rounds: Mutex::default(), changed: Condvar::new(), patience }
    }

    /// Waits for all `size` threads, each of which has a place and brings something; what they bring, by place.
    ///
    /// # Errors
    /// How many came, if not all of them did in time. The meeting is then over for those that wait.
    ///
    /// # Panics
    /// If `place` is not below `size`.
    pub(super) fn meet(&self, key: &K, place: usize, size: usize, brings: T) -> Result<Arc<[T]>, usize> {
        assert!(place < size, "place {place} of {size}");
        let deadline = Instant::now() + self.patience;
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        // The one before is over when its last thread is gone.
        while rounds.get(key).is_some_and(|round| round.shared.is_some() || round.brought[place].is_some()) {
            let left = deadline.checked_duration_since(Instant::now()).ok_or(0_usize)?;
            rounds = self.changed.wait_timeout(rounds, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let fresh = || Round { brought: (0..size).map(|_| None).collect(), shared: None, gone: 0 };
        let round = rounds.entry(key.clone()).or_insert_with(fresh);
        round.brought[place] = Some(brings);
        if round.brought.iter().all(Option::is_some) {
            round.shared = Some(round.brought.iter_mut().filter_map(Option::take).collect());
            self.changed.notify_all();
        }
        loop {
            let Some(round) = rounds.get_mut(key) else { return Err(0) };
            if let Some(shared) = round.shared.clone() {
                round.gone += 1;
                if round.gone == size {
                    rounds.remove(key);
                    self.changed.notify_all();
                }
                return Ok(shared);
            }
            let came = round.brought.iter().filter(|brought| brought.is_some()).count();
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                rounds.remove(key);
                self.changed.notify_all();
                return Err(came);
            };
            rounds = self.changed.wait_timeout(rounds, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Meetings;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn everyone_hears_what_all_brought_round_after_round() {
        let meetings = Meetings::new(Duration::from_secs(60));
        thread::scope(|scope| {
            for place in 0..4_usize {
                let meetings = &meetings;
                scope.spawn(move || {
                    for round in 0..500_usize {
                        let heard = meetings.meet(&"run", place, 4, round * 10 + place).expect("all come");
                        assert_eq!(*heard, [0, 1, 2, 3].map(|other| round * 10 + other));
                    }
                });
            }
        });
        assert!(meetings.rounds.lock().expect("no panic").is_empty());
    }

    #[test]
    fn runs_do_not_meet_each_other() {
        let meetings = Meetings::new(Duration::from_secs(60));
        thread::scope(|scope| {
            for run in 0..8_usize {
                for place in 0..2 {
                    let meetings = &meetings;
                    scope.spawn(move || assert_eq!(*meetings.meet(&run, place, 2, run).expect("both come"), [run; 2]));
                }
            }
        });
    }

    #[test]
    fn who_waits_in_vain_is_told() {
        let meetings = Meetings::new(Duration::from_millis(20));
        assert_eq!(meetings.meet(&(), 1, 3, ()), Err(1));
        assert_eq!(meetings.meet(&(), 1, 3, ()), Err(1), "the place is free again");
    }
}
