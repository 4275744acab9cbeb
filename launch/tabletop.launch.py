"""A simulated robot and the inference node: what `oxygen demo` runs, for as long as you like."""
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare


def generate_launch_description():
    share = FindPackageShare('oxygen_ros')
    params_file = LaunchConfiguration('params_file')
    namespace = LaunchConfiguration('namespace')
    return LaunchDescription([
        DeclareLaunchArgument('params_file', default_value=PathJoinSubstitution([share, 'config', 'tabletop.yaml']),
                              description='YAML file with the parameters of the robot and of the node'),
        DeclareLaunchArgument('namespace', default_value='oxygen', description='namespace of all topics and services'),
        Node(
            package='oxygen_ros', executable='tabletop_robot', name='tabletop_robot', namespace=namespace,
            parameters=[params_file], remappings=[('joint_trajectory', 'actions')], output='screen'),
        # The other arguments are those of oxygen.launch.py.
        IncludeLaunchDescription(
            PathJoinSubstitution([share, 'launch', 'oxygen.launch.py']),
            launch_arguments={'params_file': params_file, 'namespace': namespace}.items()),
    ])
