//! The service Node: volumes are formatted, mounted and shown to pods here.

mod paths;
mod publish;
mod stage;
mod stats;

use tonic::{Request, Response, Status};

use crate::capabilities;
use crate::plugin::Plugin;
use crate::spec::node_server::Node;
use crate::spec::node_service_capability::{Rpc, Type, rpc};
use crate::spec::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};

/// What Kubernetes may ask.
const CAPABILITIES: [rpc::Type; 5] = [
    rpc::Type::StageUnstageVolume,
    rpc::Type::GetVolumeStats,
    rpc::Type::ExpandVolume,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
];

#[tonic::async_trait]
impl Node for Plugin {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.work_on(&id, "NodeStageVolume", move |parts| stage::stage(parts, &request)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.work_on(&id, "NodeUnstageVolume", move |parts| stage::unstage(parts, &request)).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.work_on(&id, "NodePublishVolume", move |parts| publish::publish(parts, &request)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.work_on(&id, "NodeUnpublishVolume", move |parts| publish::unpublish(parts, &request)).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.work_on(&id, "NodeExpandVolume", move |parts| stage::expand(parts, &request)).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.ask("NodeGetVolumeStats", move |parts| stats::get(parts, &request)).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |it: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: it.into() })) };
        let capabilities = CAPABILITIES.map(capability).into();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        self.ask("NodeGetInfo", |parts| {
            let settings = &parts.settings;
            Ok(NodeGetInfoResponse {
                node_id: settings.node.clone(),
                max_volumes_per_node: settings.max_volumes,
                accessible_topology: Some(capabilities::topology(&settings.node)),
            })
        })
        .await
    }
}
