//! Sockets between the processes of one host, and the messages on them.

use crate::cuda::{Error, Result};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Connects each process of a group with each other one; none at the own rank.
///
/// # Errors
/// A process that does not connect within the timeout.
pub(super) fn connect(name: &str, rank: usize, size: usize, timeout: Duration) -> Result<Vec<Option<UnixStream>>> {
    let deadline = Instant::now() + timeout;
    let address = |rank: usize| SocketAddr::from_abstract_name(format!("{name}-{rank}"));
    let listener = address(rank).and_then(|address| UnixListener::bind_addr(&address)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let mut sockets: Vec<Option<UnixStream>> = (0..size).map(|_| None).collect();
    for (other, slot) in sockets[..rank].iter_mut().enumerate() {
        let address = address(other).map_err(failed)?;
        let mut socket = within(deadline, || UnixStream::connect_addr(&address))?;
        send(&mut socket, &[rank as u8]).map_err(failed)?;
        *slot = Some(socket);
    }
    while sockets[rank + 1..].iter().any(Option::is_none) {
        let (mut socket, _) = within(deadline, || listener.accept())?;
        socket.set_nonblocking(false).map_err(failed)?;
        // Any user may connect to an abstract address.
        if user_of(&socket).is_ok_and(own_user) {
            socket.set_read_timeout(Some(timeout)).map_err(failed)?;
            let [other] = receive(&mut socket).map_err(failed)?[..] else { continue };
            socket.set_read_timeout(None).map_err(failed)?;
            if let Some(slot) = sockets.get_mut(other as usize) {
                *slot = Some(socket);
            }
        }
    }
    for socket in sockets.iter().flatten() {
        if !user_of(socket).is_ok_and(own_user) {
            return Err(Error("a process of another user takes part".to_owned()));
        }
    }
    Ok(sockets)
}

/// Sends a message.
pub(super) fn send(socket: &mut UnixStream, message: &[u8]) -> io::Result<()> {
    socket.write_all(&[&(message.len() as u32).to_le_bytes(), message].concat())
}

/// Receives a message; an error after the end of the other process.
pub(super) fn receive(socket: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let mut message = vec![0; u32::from_le_bytes(len) as usize];
    socket.read_exact(&mut message)?;
    Ok(message)
}

/// Repeats an attempt until it succeeds or the time is over.
fn within<T>(deadline: Instant, attempt: impl Fn() -> io::Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(_) if Instant::now() < deadline => sleep(PAUSE),
            Err(error) => return Err(Error(format!("timeout: not all processes of the host connect ({error})"))),
        }
    }
}

/// User of the process at the other end.
fn user_of(socket: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes to the two variables.
    let code = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut peer).cast(), &raw mut len)
    };
    if code == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

fn own_user(user: u32) -> bool {
    // SAFETY: takes no arguments.
    user == unsafe { libc::geteuid() }
}

#[allow(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn failed(error: io::Error) -> Error {
    Error(format!("sockets between the processes: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{connect, receive, send};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn every_process_reaches_every_other() {
        let name = format!("test-{}", std::process::id());
        thread::scope(|scope| {
            for rank in 0..4_usize {
                let name = &name;
                scope.spawn(move || {
                    let mut sockets = connect(name, rank, 4, Duration::from_secs(60)).expect("all connect");
                    assert!(sockets[rank].is_none());
                    for socket in sockets.iter_mut().flatten() {
                        send(socket, format!("from {rank}").as_bytes()).expect("sent");
                    }
                    for (other, socket) in sockets.iter_mut().enumerate() {
                        let Some(socket) = socket else { continue };
                        assert_eq!(receive(socket).expect("received"), format!("from {other}").as_bytes());
                    }
                });
            }
        });
    }

    #[test]
    fn a_missing_process_is_a_timeout() {
        for rank in [0, 1] {
            let name = format!("missing-{}", std::process::id());
            let error = connect(&name, rank, 2, Duration::from_millis(30)).expect_err("nobody is there");
            assert!(error.0.starts_with("timeout: not all processes of the host connect"), "{error}");
        }
    }
}
