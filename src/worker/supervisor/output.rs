//! The stream of a run's output, and the file in which it is stored.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Writes the bytes, and removes from `rest` what was written.
pub(crate) fn write_out(to: &mut File, rest: &mut &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match to.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => *rest = &rest[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Both ends of the stream of a program's output. Other processes of the same user can open a pipe by its name below /proc and write into
/// it; a socket has no such name.
pub(crate) fn output_stream(is_socket: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    if !is_socket {
        let (from, to) = io::pipe()?;
        return Ok((from.into(), to.into()));
    }
    let (from, to) = UnixStream::pair()?;
    // The program must not be able to read anything from the socket.
    from.shutdown(Shutdown::Write)?;
    Ok((from.into(), to.into()))
}

/// Opens the output file, which the agent has created.
pub(crate) fn output_file(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}
