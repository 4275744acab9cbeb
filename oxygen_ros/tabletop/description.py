"""The simulated robot's URDF, for `robot_description`: the iiwa of pybullet_data, with the finger.

``python -m oxygen_ros.tabletop.description`` prints it.
"""
from __future__ import annotations

from pathlib import Path

from oxygen_ros.tabletop import arm

_FINGER = f"""
  <link name="finger">
    <visual>
      <origin xyz="0 0 {arm.FINGER / 2}"/>
      <geometry><cylinder radius="0.012" length="{arm.FINGER}"/></geometry>
      <material name="finger"><color rgba="0.12 0.12 0.12 1"/></material>
    </visual>
  </link>
  <link name="fingertip"/>
  <joint name="finger_mount" type="fixed">
    <parent link="lbr_iiwa_link_7"/><child link="finger"/><origin xyz="0 0 0"/>
  </joint>
  <joint name="finger_end" type="fixed">
    <parent link="finger"/><child link="fingertip"/><origin xyz="0 0 {arm.FINGER}"/>
  </joint>
"""


def description() -> str:
    """URDF text whose meshes are absolute file:// addresses, as RViz on this machine finds them."""
    import pybullet_data
    folder = Path(pybullet_data.getDataPath()) / 'kuka_iiwa'
    text = (folder / 'model.urdf').read_text().replace('filename="meshes/', f'filename="file://{folder}/meshes/')
    return text.replace('</robot>', f'{_FINGER}</robot>')


if __name__ == '__main__':
    print(description())
