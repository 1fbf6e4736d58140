//! A client's connection to the API, for the asynchronous runtime: as any socket, but for descriptors that come with
//! what the client sends. Receiving them would have us close them, and that can wait for whoever serves them: so they
//! end the connection, unless its client is an operator, who may hand over a drive.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use client_socket::{Accepted, Received, receive, receive_plain, send};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The connection.
pub struct ClientStream(AsyncFd<Client>);

struct Client {
    socket: Accepted,
    /// Where a drive goes that is handed over; `None`: the client may hand over nothing.
    handed_over: Option<HandedOver>,
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

/// What an operator handed over last, for the request that came with it.
#[derive(Debug, Clone, Default)]
pub struct HandedOver(Arc<Mutex<Vec<OwnedFd>>>);

impl HandedOver {
    /// Takes it.
    pub fn take(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, fds: Vec<OwnedFd>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fds;
    }
}

impl ClientStream {
    /// Of a client that was accepted.
    ///
    /// # Errors
    /// The kernel has no memory to watch it.
    pub fn new(socket: Accepted, handed_over: Option<HandedOver>) -> io::Result<Self> {
        Ok(Self(AsyncFd::new(Client { socket, handed_over })?))
    }
}

impl Client {
    fn receive(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        let buffer = into.initialize_unfilled();
        let received = match &self.handed_over {
            Some(_) => receive(&self.socket, buffer, RecvFlags::DONTWAIT)?,
            None => receive_plain(&self.socket, buffer)?,
        };
        match received {
            Received::Bytes(bytes, fds) => {
                into.advance(bytes);
                if let (Some(place), false) = (&self.handed_over, fds.is_empty()) {
                    place.put(fds);
                }
            }
            Received::End => {}
            Received::Nothing => return Err(Errno::AGAIN.into()),
            Received::TooManyFds(_) => return Err(Errno::BADMSG.into()),
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(&self.socket, bytes, None)? {
            0 if !bytes.is_empty() => Err(Errno::AGAIN.into()),
            sent => Ok(sent),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            if let Ok(received) = ready.try_io(|client| client.get_ref().receive(into)) {
                return Poll::Ready(received);
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(context))?;
            if let Ok(sent) = ready.try_io(|client| client.get_ref().send(bytes)) {
                return Poll::Ready(sent);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// It is shut down when it is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
