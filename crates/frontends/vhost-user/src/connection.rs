//! A client's messages: framing, replies and acknowledgements.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use client_socket::keeping::wire::Framing;
use client_socket::{Keeping, Protocol, Replies, Session};

use crate::device::Device;
use crate::front_end::{Answer, FrontEnd};
use crate::wire::{self, HEADER_BYTES, Header, MAX_PAYLOAD_BYTES, Request};

/// What a client can do that ends its connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ProtocolError {
    #[error("{request} with {payload_bytes} bytes; at most {MAX_PAYLOAD_BYTES} are possible")]
    TooLong { request: String, payload_bytes: u32 },
    #[error("a message that is not a request of version 1")]
    NotARequest,
    #[error("its messages to an earlier process can't be taken over: {0}")]
    NotRestored(String),
    #[error("{request} refused: {why}")]
    Request { request: String, why: String },
}

/// One client's connection.
pub type Connection = client_socket::Connection<FrontEnd>;

impl Protocol for FrontEnd {
    type Device = dyn Device;
    type Error = ProtocolError;
    type Header = Header;
    const HEADER_BYTES: usize = HEADER_BYTES;
    const MAX_FDS: usize = client_socket::MAX_FDS;
    /// One reply at a time: some bring a file along that was made for them.
    const MAX_UNREAD_BYTES: usize = 1;

    /// In the byte order of the hosts that this runs on.
    const FRAMING: Option<Framing> = Some(Framing {
        header_bytes: HEADER_BYTES as u32,
        length_at: 8,
        with_header: false,
        max_bytes: (HEADER_BYTES + MAX_PAYLOAD_BYTES) as u32,
        max_fds: client_socket::MAX_FDS as u32,
    });

    fn connected(&mut self, device: &mut Self::Device, session: Session) {
        if session.is_held() {
            self.begin_to_restore();
        }
        device.connected(session);
    }

    fn restored(&mut self, device: &mut Self::Device, alone: Duration) -> Result<(), ProtocolError> {
        FrontEnd::restored(self, device, alone).map_err(ProtocolError::NotRestored)
    }

    fn left(device: &mut Self::Device) {
        device.left();
    }

    fn disconnected(device: &mut Self::Device, reason: &str) {
        device.disconnected(reason);
    }

    fn header(bytes: &[u8]) -> Option<Header> {
        bytes.first_chunk().map(Header::parse)
    }

    fn payload_bytes(&self, header: Header, _replies: &mut Replies) -> Result<usize, ProtocolError> {
        let Header { request, payload_bytes, is_valid, .. } = header;
        if !is_valid {
            return Err(ProtocolError::NotARequest);
        }
        if payload_bytes as usize > MAX_PAYLOAD_BYTES {
            return Err(ProtocolError::TooLong { request: wire::name(request), payload_bytes });
        }
        Ok(payload_bytes as usize)
    }

    fn message(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut Self::Device,
        replies: &mut Replies,
    ) -> Result<Option<String>, ProtocolError> {
        self.lasting = None;
        self.warning = None;
        let result = match Request::parse(header.request, payload, fds) {
            Ok(request) => {
                let lasting = self.lasting_of(&request);
                self.handle(request, device).inspect(|_| self.lasting = lasting)
            }
            Err(malformed) => Err(malformed.to_string()),
        };
        let mut reply = |payload: &[u8], fd| replies.push(wire::reply(header.request, payload), fd);
        let acknowledged = header.need_reply && self.acknowledges();
        match result {
            Ok(Answer::Done) if acknowledged => reply(&0u64.to_ne_bytes(), None),
            Ok(Answer::Done) => {}
            Ok(Answer::Reply(payload)) => reply(&payload, None),
            Ok(Answer::ReplyWithFd(payload, fd)) => reply(&payload, Some(Arc::new(fd))),
            Err(why) => {
                let refused = ProtocolError::Request { request: wire::name(header.request), why };
                // Without what was done for it once, nothing that follows is what the client means.
                if self.is_restoring() {
                    return Err(ProtocolError::NotRestored(refused.to_string()));
                }
                // A client that waits for what it asked would take an acknowledgement for it.
                if !acknowledged || wire::has_reply(header.request) {
                    return Err(refused);
                }
                reply(&1u64.to_ne_bytes(), None);
                return Ok(Some(refused.to_string()));
            }
        }
        Ok(self.warning.take())
    }

    fn keeping(&mut self, number: u64) -> Keeping {
        self.lasting.take().map_or_else(Keeping::default, |lasting| self.kept.done(number, lasting))
    }

    fn take_config_change_due(&mut self) -> bool {
        std::mem::take(&mut self.config_change_due)
    }

    fn send_config_change(&self) {
        if let Some(channel) = &self.backend_channel {
            // A client that leaves its channel full or closed misses it.
            let _ = client_socket::send(channel, &wire::config_change(), None);
        }
    }
}
