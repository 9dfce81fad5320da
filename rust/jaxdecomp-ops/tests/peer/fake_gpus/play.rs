//! Execution of the streams' work.

use super::{Complex, IGNORE_EVENTS, Plan, Work, with};
use std::collections::{BTreeSet, VecDeque};
use std::f64::consts::TAU;

/// Random number below `n`.
pub fn random(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n
}

/// Runs the work of all streams in a random order.
pub fn play(seed: u64) {
    let (mut state, mut recorded) = (seed, BTreeSet::new());
    let (mut streams, plans) = with(|world| (std::mem::take(&mut world.streams), world.plans.clone()));
    loop {
        let free = |queue: &VecDeque<Work>| match queue.front() {
            None => false,
            Some(Work::Wait(event)) => IGNORE_EVENTS.get() || recorded.contains(event),
            Some(Work::WaitFor(address, value)) => {
                // SAFETY: words are never unmapped.
                let present = unsafe { *(*address as *const u32) };
                IGNORE_EVENTS.get() || present.wrapping_sub(*value) < 1 << 31
            }
            Some(_) => true,
        };
        let ready: Vec<usize> = (0..streams.len()).filter(|&s| free(&streams[s].1)).collect();
        if ready.is_empty() {
            break;
        }
        let chosen = ready[random(&mut state, ready.len())];
        match streams[chosen].1.pop_front().expect("not empty") {
            Work::Wait(_) | Work::WaitFor(..) => {}
            // SAFETY: as above.
            Work::Write(address, value) => unsafe { *(address as *mut u32) = value },
            Work::Record(event) => {
                recorded.insert(event);
            }
            // SAFETY: memory of the test, which outlives the streams.
            Work::Copy(copy) => unsafe {
                for row in 0..copy.height {
                    let [from, to] = [copy.src, copy.dst].map(|end| end.device as usize + row * end.pitch);
                    std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, copy.width);
                }
            },
            Work::Transform { plan, from, to, sign } => fourier(&plans[plan], from, to, sign as f64),
            Work::Overwrite(address, numbers) => {
                // SAFETY: as above.
                unsafe { std::slice::from_raw_parts_mut(address as *mut f64, numbers) }.fill(f64::NAN);
            }
        }
    }
    assert!(streams.iter().all(|(_, queue)| queue.is_empty()), "some streams wait forever");
    with(|world| world.streams = streams);
}

/// Double-precision transform of cuFFT's advanced layout by definition.
fn fourier(plan: &Plan, from: usize, to: usize, sign: f64) {
    let (from, to) = (from as *mut f64, to as *mut f64);
    let [ny, nz] = if let [n] = plan.dims[..] { [1, n] } else { [plan.dims[0], plan.dims[1]] };
    let half = nz / 2 + 1;
    for b in 0..plan.batch {
        let at =
            |side: usize, width: usize, y: usize, z: usize| b * plan.distances[side] + (y * width + z) * plan.stride;
        let (real_in, real_out) = (plan.kind == 0x6a, plan.kind == 0x6c);
        let (width_in, width_out) = (if real_out { half } else { nz }, if real_in { half } else { nz });
        let sign = if real_in {
            -1.0
        } else if real_out {
            1.0
        } else {
            sign
        };
        let value = |y: usize, z: usize| -> Complex {
            // SAFETY: memory of the test, with the plan's layout.
            unsafe {
                if real_in {
                    return [*from.add(at(0, width_in, y, z)), 0.0];
                }
                if real_out && z >= half {
                    let i = at(0, width_in, (ny - y) % ny, nz - z);
                    return [*from.add(2 * i), -*from.add(2 * i + 1)];
                }
                let i = at(0, width_in, y, z);
                [*from.add(2 * i), *from.add(2 * i + 1)]
            }
        };
        let values: Vec<Complex> = (0..ny * nz).map(|i| value(i / nz, i % nz)).collect();
        for y in 0..ny {
            for z in 0..width_out {
                let [re, im] = dft(&values, [1, ny, nz], [0, y, z], sign);
                let i = at(1, width_out, y, z);
                // SAFETY: as above.
                unsafe {
                    if real_out {
                        *to.add(i) = re;
                    } else {
                        (*to.add(2 * i), *to.add(2 * i + 1)) = (re, im);
                    }
                }
            }
        }
    }
}

/// One value of a Fourier transform by definition.
pub fn dft(values: &[Complex], n: [usize; 3], k: [usize; 3], sign: f64) -> Complex {
    let mut sum = [0.0; 2];
    for (i, [re, im]) in values.iter().enumerate() {
        let x = [i / (n[1] * n[2]), i / n[2] % n[1], i % n[2]];
        let turns: f64 = (0..3).map(|a| (k[a] * x[a] % n[a]) as f64 / n[a] as f64).sum();
        let (sin, cos) = (sign * TAU * turns).sin_cos();
        sum = [sum[0] + re * cos - im * sin, sum[1] + re * sin + im * cos];
    }
    sum
}
