//! A client's connection to the API, for the asynchronous runtime: like any socket, except for descriptors.
//!
//! A received descriptor must be closed, which may block (a FUSE server). So descriptors end the connection, unless the
//! client is an operator, who may hand over a drive.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use client_socket::{Listener, Received, receive, receive_plain, send};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// The connection.
pub struct ClientStream {
    /// There until this is dropped.
    socket: Option<UnixStream>,
    /// It knows how to part from a client.
    listener: Arc<Listener>,
    /// Where a drive goes that is handed over; `None`: the client may hand over nothing.
    handed_over: Option<HandedOver>,
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
    /// Of a client that came to `listener`. It may hand over nothing.
    pub fn new(socket: UnixStream, listener: Arc<Listener>) -> Self {
        Self { socket: Some(socket), listener, handed_over: None }
    }

    /// It may hand over a drive, which goes there.
    pub fn may_hand_over(&mut self, place: HandedOver) {
        self.handed_over = Some(place);
    }

    fn socket(&self) -> &UnixStream {
        match &self.socket {
            Some(socket) => socket,
            None => unreachable!("it goes when this is dropped"),
        }
    }

    fn receive(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        let buffer = into.initialize_unfilled();
        let received = match &self.handed_over {
            Some(_) => receive(self, buffer, RecvFlags::DONTWAIT)?,
            None => receive_plain(self, buffer)?,
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
        match send(self, bytes, None)? {
            0 if !bytes.is_empty() => Err(Errno::AGAIN.into()),
            sent => Ok(sent),
        }
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if let Some(Ok(socket)) = self.socket.take().map(UnixStream::into_std) {
            drop(self.listener.adopt(socket.into()));
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket().poll_read_ready(context))?;
            match self.socket().try_io(Interest::READABLE, || self.receive(into)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket().poll_write_ready(context))?;
            match self.socket().try_io(Interest::WRITABLE, || self.send(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
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
