//! The plugin: one operation per volume at a time, and the service Identity.

use std::sync::Arc;

use api::Rest;
use tonic::{Request, Response, Status};

use crate::busy::{Busy, Turn};
use crate::host::Host;
use crate::names::DRIVER;
use crate::parts::{Parts, Settings};
use crate::refusal;
use crate::spec::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use crate::spec::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse, identity_server::Identity,
};

/// The plugin of one node. All three services of the specification are traits of it.
#[derive(Clone)]
pub struct Plugin {
    parts: Arc<Parts>,
    busy: Busy,
}

impl Plugin {
    /// A plugin of the daemon that `daemon` asks. It does not ask yet.
    pub fn new(daemon: Rest, host: impl Host, settings: Settings) -> Self {
        let parts = Parts { daemon, host: Box::new(host), settings };
        Self { parts: Arc::new(parts), busy: Busy::default() }
    }

    /// Carries out a call about a volume, snapshot or new name, while no other one works on it.
    pub(crate) async fn work_on<T: Send + 'static>(
        &self,
        volume: &str,
        call: &'static str,
        work: impl FnOnce(&Parts) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let turn = self.busy.begin(volume)?;
        self.carry_out(Some(turn), call, work).await
    }

    /// Carries out a call that changes nothing.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        call: &'static str,
        work: impl FnOnce(&Parts) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        self.carry_out(None, call, work).await
    }

    /// The work goes on if its caller gives up, and keeps its turn until it is done.
    async fn carry_out<T: Send + 'static>(
        &self,
        turn: Option<Turn>,
        call: &'static str,
        work: impl FnOnce(&Parts) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let parts = Arc::clone(&self.parts);
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&parts).inspect_err(|status| note(call, status))
        });
        let done = working.await.map_err(|_| Status::internal("the call panicked; see the plugin's log"))?;
        done.map(Response::new)
    }
}

fn note(call: &str, status: &Status) {
    eprintln!("evenkeel-csi: {call}: {:?}: {}", status.code(), status.message());
}

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |it: service::Type| Type::Service(Service { r#type: it.into() });
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let all = [
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            Type::VolumeExpansion(online),
        ];
        let capabilities = all.map(|it| PluginCapability { r#type: Some(it) }).into();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.ask("Probe", |parts| match parts.daemon.drives() {
            Err(error) if !refusal::is_away(&error) => Err(refusal::status(&error)),
            answered => Ok(ProbeResponse { ready: Some(answered.is_ok()) }),
        })
        .await
    }
}
