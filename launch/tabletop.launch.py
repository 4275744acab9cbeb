"""A simulated robot and the inference node: what `oxygen demo` runs, for as long as you like."""
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.conditions import IfCondition
from launch.substitutions import Command, LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare


def generate_launch_description():
    share = FindPackageShare('oxygen_ros')
    params_file = LaunchConfiguration('params_file')
    namespace = LaunchConfiguration('namespace')
    shown = IfCondition(LaunchConfiguration('rviz'))
    urdf = ParameterValue(Command(['python3 -m oxygen_ros.tabletop.description']), value_type=str)
    return LaunchDescription([
        DeclareLaunchArgument('params_file', default_value=PathJoinSubstitution([share, 'config', 'tabletop.yaml']),
                              description='YAML file with the parameters of the robot and of the node'),
        DeclareLaunchArgument('namespace', default_value='oxygen', description='namespace of all topics and services'),
        DeclareLaunchArgument('rviz', default_value='false',
                              description='"true": also show everything in RViz (needs rviz2, robot_state_publisher)'),
        Node(
            package='oxygen_ros', executable='tabletop_robot', name='tabletop_robot', namespace=namespace,
            parameters=[params_file], output='screen',
            remappings=[('joint_trajectory', LaunchConfiguration('actions', default='actions'))]),
        # The other arguments are those of oxygen.launch.py.
        IncludeLaunchDescription(
            PathJoinSubstitution([share, 'launch', 'oxygen.launch.py']),
            launch_arguments={'params_file': params_file, 'namespace': namespace}.items()),
        # For the transforms of the links; the description itself comes from the robot.
        Node(package='robot_state_publisher', executable='robot_state_publisher', namespace=namespace, condition=shown,
             parameters=[{'robot_description': urdf}], remappings=[('robot_description', 'robot_description_again')]),
        Node(package='rviz2', executable='rviz2', condition=shown,
             arguments=['-d', PathJoinSubstitution([share, 'config', 'oxygen.rviz'])]),
    ])
