//! Calls on all GPUs of a group.

use super::{CURRENT, LIBRARIES, Work, new_stream, play, push, with};
use jaxdecomp_ops::cuda::{Opaque, Result};
use jaxdecomp_ops::peer::{Link, Node, Participant, Rendezvous};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Addresses of operand, result and scratch memory of one GPU.
pub type Addresses = [usize; 3];

/// Whether the threads of a seed act as processes with one GPU each.
pub fn by_processes(seed: u64) -> bool {
    seed % 2 == 1
}

/// Calls a function on a thread for each GPU, with one block of the operand each, and runs the streams' work.
pub fn on_all(
    ordinals: &[i32],
    blocks: &[Vec<f64>],
    (output, scratch): (usize, usize),
    seed: u64,
    call: impl Fn(&Node, &Rendezvous, Participant, Addresses) -> Result<()> + Sync,
) -> Vec<Result<Vec<f64>>> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    with(|world| world.memory.clear());
    let linked = by_processes(seed) && ordinals.len() > 1;
    let key = &format!("{}-{}", std::process::id(), CALLS.fetch_add(1, Relaxed));
    let (rendezvous, call) = (&Rendezvous::new(Duration::from_secs(20)), &call);
    let mut memory: Vec<[Vec<f64>; 3]> =
        blocks.iter().map(|block| [block.clone(), vec![0.0; output], vec![0.0; scratch]]).collect();
    let outcomes: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = memory
            .iter_mut()
            .enumerate()
            .map(|(rank, arrays)| {
                let ordinal = ordinals[rank];
                let lengths = [0, 1, 2].map(|i| arrays[i].len());
                let addresses = [0, 1, 2].map(|i| arrays[i].as_mut_ptr() as usize);
                for (address, len) in addresses.iter().zip(lengths) {
                    with(|world| world.memory.push((*address, address + len * 8, ordinal)));
                }
                let node = Arc::new(Node::new(LIBRARIES, ordinal).expect("a GPU"));
                let stream = new_stream(ordinal) as usize;
                scope.spawn(move || {
                    let overwrite = |which: usize| {
                        CURRENT.set(ordinal);
                        push(stream as Opaque, Work::Overwrite(addresses[which], lengths[which]));
                        CURRENT.set(-1);
                    };
                    // Earlier work of XLA's stream on the memory of the result ...
                    overwrite(1);
                    overwrite(2);
                    let link = linked.then(|| {
                        let link = Link::open(node.clone(), key, ordinals, rank, Duration::from_secs(20));
                        Arc::new(link.expect("all join"))
                    });
                    let (group, stream) = (ordinals.to_vec(), stream as Opaque);
                    let participant = Participant { run_id: 7, group, rank, stream, link };
                    let outcome = call(&node, rendezvous, participant, addresses);
                    // ... and later work on that of operand and scratch.
                    overwrite(0);
                    overwrite(2);
                    outcome
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    // Between processes, streams end after failures too.
    if linked || outcomes.iter().all(Result::is_ok) {
        play(seed);
    }
    outcomes.into_iter().zip(memory).map(|(outcome, [_, output, _])| outcome.map(|()| output)).collect()
}
