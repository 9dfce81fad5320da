//! Where the threads that drive the devices of one run tell each other something.

use super::node::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Meetings of threads that know each other by a key. Several meetings of one key follow upon each other.
#[derive(Debug)]
pub(super) struct Meetings<K, T> {
    state: Mutex<State<K, T>>,
    changed: Condvar,
    patience: Duration,
}

#[derive(Debug)]
struct State<K, T> {
    rounds: HashMap<K, Round<T>>,
    /// Keys of which a thread won't come again, and why.
    given_up: HashMap<K, String>,
}

type Guard<'a, K, T> = MutexGuard<'a, State<K, T>>;

#[derive(Debug)]
struct Round<T> {
    brought: Vec<Option<T>>,
    /// What all brought, once all are there.
    shared: Option<Arc<[T]>>,
    gone: usize,
}

/// Why a meeting did not take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// So many came in time.
    Late(usize),
    /// A thread said that it won't come, and why.
    GivenUp(String),
}

impl<K: Clone + Eq + Hash, T> Meetings<K, T> {
    /// Meetings for which each thread waits so long.
    pub(super) fn new(patience: Duration) -> Self {
        let state = Mutex::new(State { rounds: HashMap::new(), given_up: HashMap::new() });
        Self { state, changed: Condvar::new(), patience }
    }

    /// Waits for all `size` threads, each of which has a place and brings something; what they bring, by place.
    pub(super) fn meet(&self, key: &K, place: usize, size: usize, brings: T) -> Result<Arc<[T]>, Absence> {
        assert!(place < size, "place {place} of {size}");
        let deadline = Instant::now() + self.patience;
        let mut state = lock(&self.state);
        // The one before is over when its last thread is gone.
        while state.rounds.get(key).is_some_and(|round| round.shared.is_some() || round.brought[place].is_some()) {
            state = self.wait(state, deadline).map_err(|_| Absence::Late(0))?;
        }
        let fresh = || Round { brought: (0..size).map(|_| None).collect(), shared: None, gone: 0 };
        let round = state.rounds.entry(key.clone()).or_insert_with(fresh);
        round.brought[place] = Some(brings);
        if round.brought.iter().all(Option::is_some) {
            round.shared = Some(round.brought.iter_mut().filter_map(Option::take).collect());
            self.changed.notify_all();
        }
        loop {
            let Some(round) = state.rounds.get_mut(key) else { return Err(Absence::Late(0)) };
            if let Some(shared) = round.shared.clone() {
                round.gone += 1;
                if round.gone == size {
                    state.rounds.remove(key);
                    self.changed.notify_all();
                }
                return Ok(shared);
            }
            let came = round.brought.iter().flatten().count();
            if let Some(why) = state.given_up.get(key).cloned() {
                self.leave(&mut state, key, place);
                return Err(Absence::GivenUp(why));
            }
            state = match self.wait(state, deadline) {
                Ok(state) => state,
                Err(mut state) => {
                    self.leave(&mut state, key, place);
                    return Err(Absence::Late(came));
                }
            };
        }
    }

    /// Tells those that wait by this key, now or later, that a thread won't come any more.
    pub(super) fn give_up(&self, key: &K, why: &str) {
        lock(&self.state).given_up.entry(key.clone()).or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }

    /// Takes back what was brought; the last to do so ends the round.
    fn leave(&self, state: &mut State<K, T>, key: &K, place: usize) {
        if let Some(round) = state.rounds.get_mut(key) {
            round.brought[place] = None;
            if round.brought.iter().all(Option::is_none) {
                state.rounds.remove(key);
            }
            self.changed.notify_all();
        }
    }

    /// Waits for a change; the state alone once the time is over.
    fn wait<'a>(&self, state: Guard<'a, K, T>, deadline: Instant) -> Result<Guard<'a, K, T>, Guard<'a, K, T>> {
        match deadline.checked_duration_since(Instant::now()) {
            Some(left) => Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0),
            None => Err(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Absence, Meetings};
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
        assert!(meetings.state.lock().expect("no panic").rounds.is_empty());
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
        assert_eq!(meetings.meet(&(), 1, 3, ()), Err(Absence::Late(1)));
        assert_eq!(meetings.meet(&(), 1, 3, ()), Err(Absence::Late(1)), "the place is free again");
        let counts = thread::scope(|scope| {
            let meetings = &meetings;
            [0, 2]
                .map(|place| scope.spawn(move || meetings.meet(&(), place, 3, ())))
                .map(|t| t.join().expect("no panic"))
        });
        assert!(counts.contains(&Err(Absence::Late(2))), "{counts:?}");
    }

    #[test]
    fn who_gives_up_is_not_waited_for() {
        let meetings = Meetings::new(Duration::from_secs(60));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| meetings.meet(&"run", 0, 2, ()));
            meetings.give_up(&"run", "out of memory");
            let absence = Err(Absence::GivenUp("out of memory".to_owned()));
            assert_eq!(waiting.join().expect("no panic"), absence);
            assert_eq!(meetings.meet(&"run", 0, 2, ()), absence, "nor later");
        });
    }
}
