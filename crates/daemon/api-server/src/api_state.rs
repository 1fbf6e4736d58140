//! What the handlers of the API share.

use std::sync::Arc;

use api::Problem;
use axum::extract::FromRef;
use observe::events::EventLog;
use observe::why::Asker;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::api_error::Refused;
use crate::observer::Observer;
use crate::traces::Traces;
use runtime::command::Handle;

/// Connections at a time.
pub const MAX_CLIENTS: usize = 64;

/// How many clients may wait for events at once. The other connections stay free for requests that do something.
const MAX_WAITING: usize = MAX_CLIENTS / 2;

/// What the handlers need.
#[derive(Clone)]
pub struct Asked {
    pub(crate) daemon: Handle,
    pub(crate) events: Arc<EventLog>,
    /// One permit for each client that may wait for events.
    waits: Arc<Semaphore>,
    pub(crate) observer: Observer,
    pub(crate) asker: Asker,
    pub(crate) traces: Traces,
}

impl Asked {
    /// Takes no permit for waiting yet.
    pub fn new(daemon: Handle, events: Arc<EventLog>, observer: Observer, asker: Asker, traces: Traces) -> Self {
        Self { daemon, events, waits: Arc::new(Semaphore::new(MAX_WAITING)), observer, asker, traces }
    }

    /// A permit to wait. Without one left, the client gets an error with `remedy`.
    pub fn place_to_wait(&self, remedy: &str) -> Result<SemaphorePermit<'_>, Refused> {
        self.waits.try_acquire().map_err(|_| {
            let title = format!("{MAX_WAITING} others wait already");
            Problem::new(503, "too-many-wait", title, remedy).into()
        })
    }
}

impl FromRef<Asked> for Handle {
    fn from_ref(asked: &Asked) -> Self {
        asked.daemon.clone()
    }
}

impl FromRef<Asked> for Observer {
    fn from_ref(asked: &Asked) -> Self {
        asked.observer.clone()
    }
}
